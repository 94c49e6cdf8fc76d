# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0

"""What trainers know of the Go parameter server: names and signatures. The code is in main.go."""


class Server:
    def pull(self):
        raise NotImplementedError

    def push(self, grad):
        raise NotImplementedError


def new_server(size, lr=0.1):
    raise NotImplementedError


def shared():
    raise NotImplementedError
