// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloo makes a Go process a rank of a PyTorch "gloo" process group, in pure Go.
//
// [Connect] publishes an address in the store, connects to all other ranks and returns a link.Mesh that speaks gloo's
// frames. [Engine] runs gloo's algorithms over any link.Mesh: the same messages, segment sizes and slots as the C++
// library, because its peers match messages one by one.
//
// Package wire has the byte formats, package match decides (without I/O) which message goes where, and this package moves
// the bytes. keys.go has the store keys that PyTorch's versions use around a gloo group.
//
// gloo's protocol has neither authentication nor a version field. In generation A (PyTorch 1.13) a connection is
// recognised only by the port it arrives at, so only connections from the peer's published IP address are accepted; a
// process that can connect from there first takes the peer's place. Bind to an interface that only the job can reach.
package gloo
