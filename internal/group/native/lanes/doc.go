// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package lanes moves large messages of collectives over several connections between two ranks at once: a cloud limits the rate of one
// connection, and one core moves two or three gigabytes in a second.
//
// A lane is a complete mesh of package tcp, with one connection for each pair of ranks. The first one carries
// everything, as it does alone. Only a message that is large and belongs to a collective whose sizes all ranks know is
// cut into as many equal parts as there are lanes, and each part moves on its own lane, straight from and to its place
// in the message. Both ranks know the length, so they cut alike and nothing is said about it.
//
// The goroutine that waits for an operation drives the first lane, as ever. Each other lane has a goroutine of its own,
// the mover: it posts the parts, so that a goroutine that posts a message waits for no lock and copies nothing but the
// first part, and drives its lane from the first large message of a collective to its end. At other times it sleeps,
// and smaller operations know nothing of it.
//
// What befalls one lane befalls all of them. The first lane is the one that tells the group: a loss or a failure that another lane sees is
// handed to the first, which reports it as its own, and so reaches the others.
package lanes

import (
	"runtime"

	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
)

const (
	// leastSplit is the shortest message that is cut. Below it waking another core takes a good part of the time that the message does.
	leastSplit = 256 << 10
	// leastPart is the shortest part. It is longer than what is sent without room for it.
	leastPart = 64 << 10
	// maxRequestedLanes is how many lanes a rank asks for that was not given a number.
	maxRequestedLanes = 4
	// maxConnections is how many connections such a rank has at most.
	maxConnections = 256
)

// Max is how many lanes there can be.
const Max = nativewire.MaxLanes

// RequestedLanes is how many lanes a rank asks for: as many as it has cores to itself. It is one of here ranks on its
// host, 0 if that is not known, and of size in the group.
func RequestedLanes(here, size int) int {
	return lanesFor(min(runtime.GOMAXPROCS(0), runtime.NumCPU()), here, size)
}

func lanesFor(cores, here, size int) int {
	if here < 1 {
		return 1
	}
	return max(1, min(cores/here, maxRequestedLanes, maxConnections/max(size-1, 1)))
}
