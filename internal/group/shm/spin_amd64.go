// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

// spinUntil reads *word up to turns times, with a pause between, until it has reached target (in wrap-around order), and
// reports whether it has.
//
//go:noescape
func spinUntil(word *uint32, target uint32, turns int) bool
