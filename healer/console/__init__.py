"""The pages, made of the same queries as the API."""
