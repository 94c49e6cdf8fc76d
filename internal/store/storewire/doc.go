// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storewire is the codec of PyTorch's TCPStore protocol: bytes to requests and replies and back, without I/O.
//
// There are three dialects. [Legacy] is that of PyTorch 1.13 (with the codes 9 to 12 that followed it), [V] that of every
// release since 2.4, which starts with a VALIDATE message, and [Native] the framed form of V that cohort's own client and
// server agree on. docs/wire/tcpstore.md has the byte tables; a test keeps them true.
//
// Decoded requests and replies are views into the buffer they were parsed from.
package storewire
