// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rendezvous is how the processes of a job meet: an init URL becomes a store that all of them share, a rank and
// a world size. It corresponds to torch.distributed.rendezvous, and a Go process and a PyTorch process that are given
// the same URL meet each other.
//
// Two steps are kept apart. [Registry.Plan] reads URL, arguments and environment and says what is to be done, without
// doing anything; [Join] does it. Messages contain PyTorch's words, so that what users find on the web applies, and then
// say what to do.
//
// Where PyTorch only counts who comes, ranks of this module also say who they are. The rank that hosts the store tells
// by name who is missing while it waits ([EventWait]), in its error when the time is over, and a rank that is started
// twice is refused with the names of both processes.
package rendezvous
