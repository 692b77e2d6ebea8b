"""The protocol of runs over columns: a party, its turns and parcels, and the relay."""
