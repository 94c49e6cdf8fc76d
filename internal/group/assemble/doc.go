// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package assemble lets a fixed number of ranks agree, through a store, on who takes part in an attempt to form a group. It
// works any number of times with the same keys: after a failure, after a rank was replaced by another process, and after
// an attempt that some ranks gave up half-way.
//
// The number of an attempt is its generation. Under a prefix the store holds
//
//	gen              the generation that is open
//	G/rank/R         what rank R says about itself in generation G: its place
//	G/came           how many ranks have connected
//	G/made           "yes" when all have, "over" when generation G was given up
//	G/gone           the ranks that have given up generation G, one after the other
//	G/gone/0, 1      there once at most so many ranks have not, for those who wait to see who it is
//	G/left           how many ranks have closed the group
//	G/quit           the ranks that have closed it and come to no group that follows it, one after the other
//	G/up             the ranks that have connected in a group with PyTorch ranks, one after the other
//	G/dead           the ranks that died while others had not come
//	G/end            why the attempt failed or the group ended, the first reason (written by the group)
//
// # Rules
//
//  1. A rank takes its place in the open generation with a compare-and-set. A place is taken once.
//  2. A rank that finds its place taken, by an earlier call of its own or by the process that it replaces, closes the
//     generation: it increments gen, then writes "over" into all free places, then into made. This wakes the ranks that
//     wait in that generation for a missing rank, and they continue in the next one.
//  3. A rank that gives up an attempt does the same, and before that appends itself to gone. The others do so too when they find
//     the generation closed: a rank that has not may be dead or stopped.
//  4. Before a rank takes its place in generation G, it completes the closing of G-1, in case the rank that began it died.
//  5. When all places are taken, the ranks connect, increment came and wait for made. It becomes "yes" or "over", never
//     both: either all ranks have the group or all try again.
//  6. Rank 0 of a generation that was made deletes the keys of the previous one, and the last rank that leaves deletes those
//     of its own. So the number of keys does not grow with the number of generations.
//
// Ranks wait in the store, for the place of the first missing rank, so "cohort store top" shows whom they wait for.
package assemble
