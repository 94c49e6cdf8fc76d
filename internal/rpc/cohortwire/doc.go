// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cohortwire is the "cohort" transport: what two Go workers speak after TensorPipe's handshake has found that
// both are Go. A pair of workers has one connection for both directions; a frame is a header (type, id, deadline,
// incarnation, forks, trace), a payload and the storages of tensors.
//
// [Frame] and [Header] are the codec, without I/O. [Link] is the driver: a caller writes its own frames, frames of
// several callers are combined into one write, storages are written from and read into their own memory, and a peer that
// is silent for the limit is disconnected.
//
// # Optimisations
//
// Five methods of a link exist for speed. With [Link.Request], [Link.Answered] and [Link.Await] a caller reads its own
// answer when calls come one after another. With [Link.Turn] and [Link.Handover] OnFrame may run a short handler in the
// goroutine that reads. They are safe because of these rules, which builds with the tag invariants check:
//
//   - one goroutine reads at a time: the one whose turn it is, or the caller that has borrowed the reader
//
//   - the reader is offered only inside the OnFrame of an answer, and that turn is never handed over
//
//   - a caller reads only its own answer, if it is complete and small, and the frames that Config.MayPassOn names
//
//   - the link is without a reader for at most two milliseconds: then the guard returns it to the reading goroutine
//
//   - one writer at a time has the right to write, and does not leave anything in the queue without passing that right on
//
//     offset size  field
//     0      4     length of what follows the header up to the storages: extension and payload
//     4      2     type: PyTorch's message numbers below 0x1000, our own from there
//     6      1     flags, for the agents
//     7      1     0xc7, to detect a stream that has lost its framing
//     8      8     id: the request's number, which its answer repeats
//     16     8     incarnation of the sender: which start of this worker it is
//     24     8     deadline: nanoseconds left when the frame was written; 0 for none
//     32     4     length of the extension
//     36     4     number of storages
//     40     8     length of all storages
//
// The extension is the length of each storage (8 bytes each), the number of forks (2) and the forks (24 each), the
// length of the trace (1) and the trace. All integers are little-endian.
package cohortwire
