// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rendezvous is how the processes of a job find each other: it turns an init URL into a store that all of them
// share, a rank and a world size. It corresponds to torch.distributed.rendezvous; Go and PyTorch processes with the same
// URL join the same world.
//
// There are two separate steps. [Registry.Plan] reads URL, arguments and environment and returns what is to be done;
// [Join] does it. Error messages contain PyTorch's wording, so that a web search helps, and then say what to do.
//
// PyTorch only counts the ranks that have joined; ranks of this module also say who they are. The rank that hosts the
// store reports which ranks are missing, while it waits ([EventWait]) and in its error when it times out. A rank that is
// started twice is refused with the names of both processes.
package rendezvous
