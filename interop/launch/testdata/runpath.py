"""Says how it was started, in one piece."""
import os
import sys

if __name__ == "__main__":
    beside = os.path.dirname(__file__) in sys.path
    os.write(1, f"said {os.environ['RANK']} {sys.argv} {__file__} {'__loader__' in globals()} {beside}\n".encode())
