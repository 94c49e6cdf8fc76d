// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"net"
	"time"
)

// PyTorch writes a request in six pieces. The runtime watches every connection with its poller thread, which each piece
// wakes; it wakes a goroutine, and that the monitor of the runtime. These threads compete with the one that is writing,
// and on a machine whose cores are busy, as they are where PyTorch workers poll their shared memory, a small call waits
// for them most of the time. So the connections that requests arrive on are not watched: while requests come one after
// the other, the receiver polls, that is, it waits for the next one in the kernel, in its own thread, for a moment
// and until enough has arrived. Only then it parks as usual.

const (
	// pollTime is how long a receiver polls. It occupies one of the GOMAXPROCS meanwhile, unless the runtime needs it, and
	// counts as one of the raw sleeps of [spinwait.BeginRawSleep].
	pollTime = time.Millisecond
	// pollCredit is the number of messages that may arrive later than that before the receiver stops polling.
	pollCredit = 4
	// minMessage is the size of the smallest message of PyTorch's without its tensors: 36 bytes of a descriptor, type and
	// id, a payload of no bytes, and an empty tensor table of 47. A smaller one is found when the poll has ended.
	minMessage = 36 + 12 + 16 + 8 + 55
)

// patient is a connection that is not watched.
type unpolledConn interface {
	net.Conn
	// expect announces that at least n further bytes will arrive: the reader need not be woken before.
	expect(n int)
	// writeBuffers is [net.Buffers.WriteTo].
	writeBuffers(bufs net.Buffers) (int64, error)
}

// adaptivePoll says whether the receiver of a pipe polls where it has to wait. It belongs to the receiver.
type adaptivePoll struct {
	began  time.Time
	credit int
	on     bool
}

// begin is called before the wait for a message. alone says that nothing else is under way on the pipe.
func (l *adaptivePoll) begin(alone bool) {
	l.began = time.Now()
	l.on = alone && l.credit > 0
}

// arrived is called when a message has begun to arrive. The rest of it is waited for in the same way.
func (l *adaptivePoll) arrived() {
	if time.Since(l.began) < pollTime {
		l.credit = pollCredit
	} else if l.credit > 0 {
		l.credit--
	}
}
