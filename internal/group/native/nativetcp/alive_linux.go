// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// joined are the connections that a rank has so far while it makes the others.
type joined struct {
	mu struct {
		sync.Mutex
		conns  []net.Conn
		hellos []nativewire.Hello // what each rank said
	}
}

func newJoined(size int) *joined {
	j := &joined{}
	j.mu.conns, j.mu.hellos = make([]net.Conn, size), make([]nativewire.Hello, size)
	return j
}

// put adds the connection to a rank. It returns false if there is one.
func (j *joined) put(rank int, c net.Conn, hello *nativewire.Hello) bool {
	failpoint.At("tcp.connect.put")
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.conns[rank] != nil {
		return false
	}
	j.mu.conns[rank], j.mu.hellos[rank] = c, *hello
	return true
}

// all returns the connections, when no more are added.
func (j *joined) all() ([]net.Conn, []nativewire.Hello) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.conns, j.mu.hellos
}

// beat tells the connected ranks until ctx ends that this rank lives. One of them may have all its connections and miss heartbeats
// while this rank still waits for another: it would take this rank for stopped, and not the one that both wait for.
func (j *joined) beat(ctx context.Context, every time.Duration) {
	if every <= 0 {
		return
	}
	var frame [nativewire.HeaderSize]byte
	beatFrame.Put(frame[:])
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		failpoint.At("tcp.connect.beat.wait")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		failpoint.At("tcp.connect.beat")
		j.mu.Lock()
		for _, c := range j.mu.conns {
			if c != nil {
				writeFrame(c, frame[:])
			}
		}
		j.mu.Unlock()
	}
}

// writeFrame writes a frame to a connection that has no other writer yet. The buffer of a socket holds more frames than the connecting has
// beats, so the write does not wait. What is wrong with a connection is found by the mesh.
func writeFrame(c net.Conn, frame []byte) {
	_ = c.SetWriteDeadline(time.Now().Add(helloLimit))
	if n, err := c.Write(frame); err != nil && n > 0 {
		_ = c.Close() // a part of a frame cannot be followed by another
	}
}
