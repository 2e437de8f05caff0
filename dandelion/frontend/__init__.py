"""HTTP frontend: the ASGI application, its codecs and problems, the server, the client."""
