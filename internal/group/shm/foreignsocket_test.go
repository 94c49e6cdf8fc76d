// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"encoding/hex"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// listenAs makes a socket of another user that gives a segment to the first that connects, and returns its address. The function that it
// returns waits until that one has gone, and returns what it had sent.
func listenAs(t *testing.T, uid int, segment int) (string, func() string) {
	t.Helper()
	var l *net.UnixListener
	var err error
	var made sync.WaitGroup
	made.Go(func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@cohort-test-" + strings.ReplaceAll(t.Name(), "/", "-"), Net: "unix"})
	})
	made.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var received string
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		u, failed := l.AcceptUnix()
		if failed != nil {
			return
		}
		defer func() { _ = u.Close() }()
		_ = u.SetReadDeadline(time.Now().Add(5 * time.Second))
		hello := make([]byte, helloSize)
		n, _ := u.Read(hello)
		received = string(hello[:n])
		if n > 0 {
			_, _, _ = u.WriteMsgUnix([]byte{welcome}, unix.UnixRights(segment), nil)
		}
	})
	return l.Addr().String(), func() string {
		serving.Wait()
		return received
	}
}

// TestSocketOfAnotherUser: a rank that dials says nothing to a socket that another user has made, and takes no segment from it, even
// if the store says that rank 0 listens there. The same socket of its own user serves.
func TestSocketOfAnotherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	for name, uid := range map[string]int{"another": testkit.OtherUser, "own": 0} {
		t.Run(name, func(t *testing.T) {
			j := newJoiners(t)
			zero, one := j.stopped(0), j.stopped(1)
			f, s, err := createSegment(&zero.config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { s.unmap(); _ = f.Close() }()
			at, received := listenAs(t, uid, int(f.Fd()))
			value := addressField + hex.EncodeToString(zero.token[:]) + " " + at
			if err = j.store.Set(j.ctx, one.key(0), []byte(value)); err != nil {
				t.Fatal(err)
			}
			err = one.dial(j.ctx, 0)
			one.endBeat()
			if uid == 0 {
				if err != nil || one.seg == nil {
					t.Errorf("a socket of this user: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "the socket belongs to user 65534") ||
				!strings.Contains(err.Error(), "rank 0") {
				t.Errorf("a socket of another user: %v", err)
			}
			one.cleanUp()
			if sent := received(); one.seg != nil || one.file != nil || sent != "" {
				t.Errorf("it was served: segment %v, it received %q", one.seg != nil, sent)
			}
		})
	}
}
