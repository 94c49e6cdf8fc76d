// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// sockets returns a connection that was taken over and its other end.
func sockets(t *testing.T) (*socket, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tcp, ok := peer.(*net.TCPConn)
	if !ok {
		t.Fatalf("a connection of type %T", peer)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s, ok := takeOver(nc, &adaptivePoll{}).(*socket)
	if !ok {
		t.Fatal("the connection was not taken over")
	}
	t.Cleanup(func() { _, _ = s.Close(), peer.Close() })
	return s, tcp
}

func write(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Error(err)
	}
}

// TestSocketReads sends bytes in pieces of any size with and without pauses, to a reader that says what it expects, but
// not always the truth.
func TestSocketReads(t *testing.T) {
	s, peer := sockets(t)
	rapid.Check(t, func(rt *rapid.T) {
		s.poll.on = rapid.Bool().Draw(rt, "poll")
		pieces := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 300), 1, 8).Draw(rt, "pieces")
		pause := time.Duration(rapid.SampledFrom([]int{0, 0, 20, 2000}).Draw(rt, "pause")) * time.Microsecond
		expect := rapid.IntRange(-1, 5000).Draw(rt, "expect")
		want := bytes.Join(pieces, nil)
		sent := make(chan error, 1)
		go func() {
			for _, p := range pieces {
				if _, err := peer.Write(p); err != nil {
					sent <- err
					return
				}
				time.Sleep(pause)
			}
			sent <- nil
		}()
		got := make([]byte, len(want))
		s.expect(expect)
		_, err := io.ReadFull(s, got)
		if err = errors.Join(err, <-sent); err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			rt.Fatalf("got %d other bytes than were sent", len(want))
		}
	})
}

// TestSocketWakesAt lets the kernel report when a receiver would be woken that expects so much.
func TestSocketWakesAt(t *testing.T) {
	s, peer := sockets(t)
	ready := func(limit time.Duration) (n int) {
		t.Helper()
		err := s.raw.Control(func(fd uintptr) {
			if err := s.wakeAt(int(fd), minMessage); err != nil {
				t.Error(err)
			}
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			var err error
			if n, err = unix.Poll(fds, int(limit.Milliseconds())); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	write(t, peer, make([]byte, minMessage-1))
	if ready(50*time.Millisecond) != 0 {
		t.Error("woken before enough has come")
	}
	write(t, peer, []byte{1})
	if ready(10*time.Second) != 1 {
		t.Error("not woken when enough has come")
	}
	if n, err := s.Read(make([]byte, 2*minMessage)); n != minMessage || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	write(t, peer, []byte{1})
	_ = peer.CloseWrite()
	if ready(10*time.Second) != 1 {
		t.Error("not woken by the end")
	}
}

// TestSocketEnds ends a read that waits, in all the ways there are: of a reader that polls first, and of one that does
// not.
func TestSocketEnds(t *testing.T) {
	timedOut := func(err error) bool {
		var timeout net.Error
		return errors.As(err, &timeout) && timeout.Timeout()
	}
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	parked := 5 * pollTime // probably
	for _, c := range []struct {
		name string
		wait time.Duration
		end  func(s *socket, peer *net.TCPConn) error
		want func(err error) bool
	}{
		{"close", parked, func(s *socket, _ *net.TCPConn) error { return s.Close() }, is(net.ErrClosed)},
		{"close early", pollTime / 2, func(s *socket, _ *net.TCPConn) error { return s.Close() }, is(net.ErrClosed)},
		{"end", parked, func(_ *socket, peer *net.TCPConn) error { return peer.Close() }, is(io.EOF)},
		{
			"reset", parked, func(_ *socket, peer *net.TCPConn) error { return errors.Join(peer.SetLinger(0), peer.Close()) },
			is(unix.ECONNRESET),
		},
		{"deadline", parked, func(s *socket, _ *net.TCPConn) error { return s.SetReadDeadline(time.Unix(1, 0)) }, timedOut},
		{"less than expected", parked, func(_ *socket, peer *net.TCPConn) error {
			_, err := peer.Write([]byte("x"))
			return err
		}, is(nil)},
	} {
		for _, on := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/poll=%v", c.name, on), func(t *testing.T) {
				s, peer := sockets(t)
				s.poll.on = on
				done := make(chan error, 1)
				read := func() {
					s.expect(100)
					_, err := s.Read(make([]byte, 10))
					done <- err
				}
				go read()
				time.Sleep(c.wait)
				if err := c.end(s, peer); err != nil {
					t.Fatal(err)
				}
				if err := <-done; !c.want(err) {
					t.Error(err)
				}
				switch c.name {
				case "close":
					if err := s.Close(); !errors.Is(err, net.ErrClosed) {
						t.Errorf("closed again: %v", err)
					}
					if _, err := s.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
						t.Errorf("written after Close: %v", err)
					}
				case "deadline": // it can be used again
					if err := s.SetReadDeadline(time.Time{}); err != nil {
						t.Fatal(err)
					}
					go read()
					write(t, peer, []byte("x"))
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestSocketWrites fills the buffers of both ends and gives up; then all of it is read.
func TestSocketWrites(t *testing.T) {
	s, peer := sockets(t)
	data := make([]byte, 16<<20)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	done := make(chan struct{})
	written := int64(0)
	go func() {
		defer close(done)
		for written < int64(len(data)) {
			half := written + (int64(len(data))-written)/2
			n, err := s.writeBuffers(net.Buffers{nil, data[written:half], {}, data[half:]})
			if written += n; err == nil {
				continue
			}
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Error(err)
				return
			}
			if err := s.SetWriteDeadline(time.Time{}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 3 {
		time.Sleep(2 * time.Millisecond)
		_ = s.SetWriteDeadline(time.Now())
	}
	got := make([]byte, len(data))
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Fatal(err)
	}
	<-done
	if !bytes.Equal(got, data) {
		t.Error("other bytes came than were written")
	}
	// The writer notices a deadline only if it has to wait: the last one may be left.
	if err := s.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		time.Sleep(5 * time.Millisecond)
		_ = s.Close()
	}()
	for {
		if _, err := s.Write(data); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			break
		}
	}
}

// TestSocketIsNotWatched looks into the kernel's tables: what arrives on a connection that was taken over wakes no thread
// but the receiver.
func TestSocketIsNotWatched(t *testing.T) {
	s, peer := sockets(t)
	fd := -1
	if err := s.raw.Control(func(p uintptr) { fd = int(p) }); err != nil {
		t.Fatal(err)
	}
	armed := func() (armed int) {
		t.Helper()
		for ep, events := range watchers(t, fd) {
			if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLOUT) != 0 {
				armed++
				t.Logf("descriptor %d is watched by %d for %#x", fd, ep, events)
			}
		}
		return armed
	}
	if armed() != 0 {
		t.Error("a new one is watched")
	}
	for range 2 { // parked, and then not
		done := make(chan error, 1)
		go func() {
			_, err := s.Read(make([]byte, 1))
			done <- err
		}()
		for end := time.Now().Add(10 * time.Second); armed() != 1; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("one that is waited for is not watched")
			}
		}
		write(t, peer, []byte("x"))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if armed() != 0 {
			t.Error("it is watched although no goroutine waits")
		}
	}
}

// watchers returns the epoll instances of this process that hold a descriptor, with the events they wait for.
func watchers(t *testing.T, fd int) map[int]uint64 {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(links) == 0 {
		t.Fatal("no table of descriptors", err)
	}
	found := map[int]uint64{}
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || to != "anon_inode:[eventpoll]" {
			continue
		}
		ep, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", ep))
		if err != nil {
			continue // it was another test's
		}
		for line := range strings.Lines(string(info)) {
			f := strings.Fields(line) // tfd: 8 events: 2019 data: ...
			if len(f) > 3 && f[0] == "tfd:" && f[1] == strconv.Itoa(fd) {
				if found[ep], err = strconv.ParseUint(f[3], 16, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return found
}

// TestSocketCloses leaves no descriptor behind.
func TestSocketCloses(t *testing.T) {
	count := func() int {
		links, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		return len(links)
	}
	before := -1
	for i := range 30 {
		s, peer := sockets(t)
		write(t, peer, []byte("x"))
		if _, err := s.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Close(), peer.Close()
		if i == 9 {
			before = count()
		}
	}
	if after := count(); after > before+5 {
		t.Errorf("%d descriptors after 10 connections, %d after 30", before, after)
	}
}
