// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloowire encodes and decodes what gloo puts into the store and on its connections: address records, the preamble
// of a connection, and the frames that carry messages. It does no I/O.
//
// Everything is little endian, as on every platform that PyTorch runs gloo on, except the port and the IP address inside
// a socket address. docs/wire/gloo.md has the tables.
package gloowire
