// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cohortwire is the "cohort" transport: what two Go workers speak after TensorPipe's handshake has found that
// both are Go. A pair of workers has one connection for both directions; a frame is a header (type, id, deadline,
// incarnation, forks, trace), a payload and the storages of tensors.
//
// [Frame] and [Header] are the codec, without I/O. [Link] is the driver: a caller writes its own small frames, frames of
// several callers leave in one write, storages are written from and read into their own memory, and a peer that gives
// no sign of life for the limit is cut.
//
// # What is done for speed
//
// A user of a link meets it in five methods. [Link.Request], [Link.Answered] and [Link.Await]: where calls come one after
// the other, a caller reads its own answer. [Link.Turn] and [Link.Handover]: OnFrame may run a short handler in the
// goroutine that reads. They are safe because of these rules, which builds with the tag invariants check:
//
//   - one goroutine reads at a time: the one whose turn it is, or a caller that the reading was lent to
//
//   - the reading is lent only inside the OnFrame of an answer, and that turn is never handed over
//
//   - a caller reads only its own answer, whole and small, and what Config.Aside names
//
//   - nobody reads for at most two milliseconds: the guard gives the reading back
//
//   - one of those who write has the right to write, and leaves nothing in the queue without giving that right away
//
//     offset size  field
//     0      4     length of what follows the header up to the storages: extension and payload
//     4      2     type: PyTorch's message numbers below 0x1000, our own from there
//     6      1     flags, for the agents
//     7      1     0xc7, so that a stream out of step is noticed
//     8      8     id: the request's number, which its answer repeats
//     16     8     incarnation of the sender: which start of this worker it is
//     24     8     deadline: nanoseconds left when the frame was written; 0 means none
//     32     4     length of the extension
//     36     4     number of storages
//     40     8     length of all storages
//
// The extension is the length of each storage (8 bytes each), the number of forks (2) and the forks (24 each), the
// length of the trace (1) and the trace. All integers are little-endian.
package cohortwire
