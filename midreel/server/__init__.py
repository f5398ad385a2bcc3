"""Search over HTTP, and the page that plays what was found.

`app.create_app` makes the application, `serving.serve` runs it. FastAPI enters through this room only.
"""
