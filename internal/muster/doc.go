// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package muster lets a fixed number of ranks agree, through a store, on who takes part in one attempt to form a group. It
// works any number of times over the same keys: after a failure, after a rank was replaced by another process, after an
// attempt that some ranks gave up half way.
//
// Attempts are numbered; the number is a generation. Under a prefix the store holds
//
//	gen              the generation that is open
//	G/rank/R         what rank R says about itself in generation G: its place
//	G/came           how many ranks have connected
//	G/made           "yes" when all have, "over" when generation G was given up
//	G/left           how many ranks have closed the group
//	G/end            why the group ended first (written by the group)
//
// # Rules
//
//  1. A rank takes its place in the open generation with a compare-and-set. A place is taken once.
//  2. A rank that finds its place taken, by an earlier call of its own or by a process that it replaces, closes the
//     generation: it counts gen up, then writes "over" into all places that are free, then into made. So whoever waits in
//     that generation for a rank that has not come is woken, and goes on in the next one.
//  3. So does a rank that gives up an attempt.
//  4. A rank that opens its place in generation G first completes the closing of G-1, in case that who began it has died.
//  5. When all places are taken, the ranks connect, count came up and wait for made. It becomes "yes" or "over", never both:
//     either all ranks have the group or all try again.
//  6. Rank 0 of a generation that was made deletes the keys of the one before; the last rank that leaves deletes those of
//     its own. So the keys in the store do not grow with the number of generations.
//
// Waiting is waiting in the store, for the place of the first rank that is missing: "cohort store top" shows it.
package muster
