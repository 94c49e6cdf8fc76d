// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
)

// poorListener is the listener of a process that has no file descriptors left, at once or after some connections.
type poorListener struct {
	net.Listener
	accept bool // but the socket cannot be taken over
}

// poorConn is a connection whose socket cannot be duplicated.
type poorConn struct{ net.Conn }

func (l poorListener) Accept() (net.Conn, error) {
	if !l.accept {
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	c, err := l.Listener.Accept()
	return poorConn{c}, err
}

// TestConnectFailureIsReported: a rank that the operating system refuses something says what and tells the others why it gives up before
// its connections end, which they would take for its death.
func TestConnectFailureIsReported(t *testing.T) {
	t.Parallel()
	for name, accept := range map[string]bool{"accept": false, "take over": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var listeners []net.Listener
			var peers []string
			for range 2 {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				listeners, peers = append(listeners, l), append(peers, l.Addr().String())
			}
			var other sync.WaitGroup
			other.Go(func() {
				m, err := Connect(ctx, Config{Rank: 1, Size: 2, Listener: listeners[1], Peers: peers, Shared: true})
				if err == nil {
					_ = m.Close()
				}
			})
			var reported error
			_, err := Connect(ctx, Config{
				Rank: 0, Size: 2, Listener: poorListener{listeners[0], accept}, Peers: peers, Shared: true,
				OnGiveUp: func(err error) { reported = err },
			})
			cancel()
			other.Wait()
			switch {
			case err == nil || !errors.Is(reported, err):
				t.Errorf("it failed with %v, and reported %v", err, reported)
			case !accept && !errors.Is(err, unix.EMFILE):
				t.Errorf("the reason is lost: %v", err)
			}
			if e, _ := errors.AsType[*cohort.Error](err); e == nil || e.Code != cohort.Unavailable || e.Rank != 0 {
				t.Errorf("it is rank 0 that is not there: %v", err)
			}
		})
	}
}

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
