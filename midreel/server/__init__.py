"""The HTTP API, the page that plays what a search finds, and a Python client.

`app.create_app` builds the ASGI application and `runner.serve` runs it. FastAPI is imported only in this package.
"""
