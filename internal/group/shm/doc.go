// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package shm runs collectives of Go ranks that share a host through one shared memory segment.
//
// Rank 0 makes the segment (a memfd, or an unlinked file where there is none) and hands its descriptor to the others over
// unix sockets, whose names travel through an [Exchange]. The sockets stay open: when one closes, a rank knows that
// another has died. Each rank has a counter, its step, of how far it is; every operation is a few steps, as many
// on every rank:
//
//	step 1    each rank publishes what it was asked to do, with its data or the first piece of it; all compare
//	step 2..  the rest passes through the ranks' areas in pieces, two buffers deep
//
// Because of step 1, a mismatch of operation, type, size, operator, root or order is an error on every rank, naming
// both sides, before any data is combined; but see below for small operations with a root. What a rank has shown with a
// step it overwrites only when all ranks have taken the next one, so no operation needs a barrier at its end.
//
// A small operation with a root has only step 1, in which a rank waits for those whose data it needs: the root of a broadcast
// for no rank, the others for the root. So a rank may be some steps ahead of others; its last steps stay readable, and are
// compared when it has to wait for the others anyway. A mismatch with a rank that it did not wait for is the error of that later
// operation; if none follows before the group is closed, it is not found.
//
// Reductions combine in rank order whatever the size, so the result is the same on every rank and for every algorithm.
//
// A rank that waits spins or yields its core as package spinwait decides, then sleeps on a futex in the segment.
package shm
