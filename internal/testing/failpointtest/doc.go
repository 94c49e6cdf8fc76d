// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package failpointtest injects events at chosen points of execution: a context ends, an object is closed, a callback calls
// back, panics or ends its goroutine, a peer dies, stops or is late. It covers points that hand-written tests miss.
//
// The points are the calls of [failpoint.At], compiled in by the build tag moments. A [Scenario] is a small world: it
// sets up peers, runs a random operation among them, and says with [Run.On] how each of its events is triggered. For
// each seed [Test] runs it twice. The first run counts the points that are hit; the beginning is one. The second
// injects one or two events at one or two of them, either from the goroutine that hits the point or from another while
// that one waits there. The seed determines all of this. The scenario checks what its calls returned; [Test] checks
// that everything ends in time and that no goroutines, descriptors or shared segments are left behind.
//
// A virtual scenario runs in a testing/synctest bubble on one processor: time is exact, and a seed replays step by step.
// It may use only connections in memory (package faultnet). A scenario with real sockets or processes runs in real time:
// the seed determines operation, point and event, the kernel the rest.
//
// # Running
//
//	make moments                                                      some hundreds of seeds of everything
//	go test -tags moments ./internal/testing/failpointtest/... -moments.seeds 10000
//	go test -tags moments ./internal/testing/failpointtest/storefail -run /native -moments.seed 17 -moments.trace
//	go test -tags moments ./internal/testing/failpointtest/rpcfail -moments.seeds 2000 -moments.table -v
//
// The last one prints which events happened during which operations, at which points, and together with which others.
//
// A failure prints its seed, the point, the event, and the command that reruns it.
//
// # Writing a scenario
//
// Make a package below this one with a test file that has the build tag moments:
//
//	func TestThing(t *testing.T) {
//		failpointtest.Test(t, failpointtest.Scenario{
//			Name: "thing", Virtual: true,
//			Points: []string{"thing."},                      // prefixes of the points that count
//			Events: []failpointtest.Event{failpointtest.Cancel, failpointtest.Deadline, {Name: "close"}},
//			Run: func(r *failpointtest.Run) {
//				thing := newThing()
//				ctx := r.Context()                          // ends by Cancel, CancelCause and Deadline
//				r.On("close", func() { thing.Close() })
//				r.Does("do")                                // for the table
//				r.Begin()                                   // points count from here
//				call := r.Go("do", time.Second, func() error { return thing.Do(ctx) })
//				r.Wait()                                    // all calls have ended, or it has failed
//				r.Check(call, r.Allow(cohort.Closed, "close"))
//				thing.Close()
//			},
//		})
//	}
//
// There are two rules for points. In a virtual scenario a goroutine sleeps at a point, so a point must not be hit under a
// mutex: a goroutine that waits for a mutex keeps the bubble's clock from advancing, and the run is reported as stuck.
// And the name of a point must depend only on its place in the code.
package failpointtest
