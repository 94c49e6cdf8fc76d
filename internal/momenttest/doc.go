// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package momenttest makes things happen at chosen moments: a context ends, an object is closed, a callback calls back,
// panics or ends its goroutine, a peer dies, stops or is late, at a point of execution that nobody would have thought of.
//
// The points are the calls of [moment.At], compiled in by the build tag moments. A [Scenario] is a small world: it sets
// peers up, runs a random operation among them, and says by [Run.On] how each of its events is made to happen. For each
// seed [Test] runs it twice. The first run counts the points that are hit, the second injects one or two events at one
// or two of them, from the goroutine that hits the point or from another while that one waits there. The seed decides
// about all of it. The scenario checks what its calls returned; [Test] checks that everything ends in time and that
// goroutines, descriptors and shared segments return to what they were.
//
// A virtual scenario runs in a bubble of testing/synctest on one processor: its time is exact and a seed is replayed
// step by step. It may use connections in memory only (package faultnet). A scenario on real sockets or processes has
// real time: the seed fixes operation, point and event, and the kernel the rest.
//
// # Running
//
//	make moments                                                      some hundreds of seeds of everything
//	go test -tags moments ./internal/momenttest/... -moments.seeds 10000
//	go test -tags moments ./internal/momenttest/storemoment -run /native -moments.seed 17 -moments.trace
//
// A failure prints its seed, the point and the event, and the command that runs it again.
//
// # Writing a scenario
//
// Make a package below this one with a test file that has the build tag moments:
//
//	func TestThing(t *testing.T) {
//		momenttest.Test(t, momenttest.Scenario{
//			Name: "thing", Virtual: true,
//			Points: []string{"thing."},                      // prefixes of the points that count
//			Events: []momenttest.Event{momenttest.Cancel, momenttest.Deadline, {Name: "close"}},
//			Run: func(r *momenttest.Run) {
//				thing := newThing()
//				ctx := r.Context()                          // ends by Cancel, CancelCause and Deadline
//				r.On("close", func() { thing.Close() })
//				r.Begin()                                   // points count from here
//				call := r.Go("do", time.Second, func() error { return thing.Do(ctx) })
//				r.Wait()                                    // all calls have ended, or it has failed
//				r.Check(call, r.Allow(dist.Closed, "close"))
//				thing.Close()
//			},
//		})
//	}
//
// Two rules for points. In a virtual scenario a goroutine sleeps at a point, so a point must not be hit under a mutex: a
// goroutine that waits for a mutex keeps the bubble's clock from advancing, and the run is reported as stuck. And a
// point's name must not depend on anything but the place.
package momenttest
