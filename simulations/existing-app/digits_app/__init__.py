"""Recognise handwritten digits by FedAvg: an app like those that Flower's users have."""
