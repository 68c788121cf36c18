"""The console page in a browser, on a stand-in for the service and on a live service."""
