"""A local chat endpoint for tests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer:
    """Answer requests with `reply_to`, after the queued `replies` (code, content, headers)."""

    def __init__(self):
        self.asked, self.headers, self.replies = [], [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.headers.append(dict(self.headers))
                code, reply, extra = outer.replies.pop(0) if outer.replies else (200, outer.completion(body), {})
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(code)
                for name, value in {**extra, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def reply_to(self, body):
        return "an image"

    def completion(self, body):
        return self.completion_of(self.reply_to(body))

    @staticmethod
    def completion_of(text):
        return {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 100, "completion_tokens": 7}}

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
