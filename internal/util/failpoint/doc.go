// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package failpoint marks the points of execution at which a test may make something happen: a cancellation, a close, the
// death of a peer. Code calls At before every lock, wait, read, write and hand-over that another goroutine, process or
// caller can interleave with, and after every registration of something that may run at once, such as a
// context.AfterFunc. It never calls At while it holds a mutex: a test may make the goroutine wait there, and in a
// testing/synctest bubble a goroutine that waits for the mutex would keep time from advancing. Package failpointtest has the
// tests.
//
// TestPoints of internal/repolint finds the places that have no point in the packages that it lists. A place that can have none says
// why in its line: "
//
// Without the build tag moments a point is an empty function that the compiler removes.
package failpoint
