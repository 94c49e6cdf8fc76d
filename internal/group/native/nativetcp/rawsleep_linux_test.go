// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCollectionEndsARawSleep: the garbage collector does not wait for a raw sleep, of which the runtime does not know: its signal
// ends the system call.
func TestCollectionEndsARawSleep(t *testing.T) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(ep) }()
	const long = 20 * time.Second
	var began atomic.Bool
	ended := make(chan syscall.Errno, 1)
	go func() {
		var events [1]unix.EpollEvent
		began.Store(true)
		_, errno := epollRaw(ep, events[:], int(long/time.Millisecond))
		ended <- errno
	}()
	for !began.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // the call follows at once
	start := time.Now()
	runtime.GC()
	if took := time.Since(start); took > long/4 {
		t.Errorf("the collection took %v", took)
	}
	select {
	case errno := <-ended:
		if errno != unix.EINTR {
			t.Errorf("the raw sleep ended with %v", errno)
		}
	case <-time.After(long / 2):
		t.Error("the raw sleep goes on")
	}
}
