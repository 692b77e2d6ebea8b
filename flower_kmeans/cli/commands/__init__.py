"""Commands as users type them: their options and help. The work is done by the modules beside."""
