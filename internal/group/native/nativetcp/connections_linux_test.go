// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkConnections moves a large message between two ends of loopback over one connection or several, with one thread at each end
// or one for each connection. It prints the processor time of both ends and how many cores they use: decision 34 rests on it.
func BenchmarkConnections(b *testing.B) {
	const message = 64 << 20
	for _, c := range []struct{ threads, connections int }{{1, 1}, {1, 2}, {1, 4}, {2, 2}} {
		b.Run(fmt.Sprintf("threads=%d/connections=%d", c.threads, c.connections), func(b *testing.B) {
			out, in := pairs(b, c.connections)
			source, sink := make([]byte, message), make([]byte, message)
			b.SetBytes(message)
			before, began := processorTime(b), time.Now()
			b.ResetTimer()
			for range b.N {
				var ends sync.WaitGroup
				for t := range c.threads {
					mine := func(fds []int) []int { return fds[t*len(fds)/c.threads : (t+1)*len(fds)/c.threads] }
					ends.Go(func() { carry(b, mine(out), share(source, t, c.threads), unix.POLLOUT) })
					ends.Go(func() { carry(b, mine(in), share(sink, t, c.threads), unix.POLLIN) })
				}
				ends.Wait()
			}
			used, took := processorTime(b)-before, time.Since(began)
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N)/(message>>10), "cpu-ns/KiB")
			b.ReportMetric(used.Seconds()/took.Seconds(), "cores")
		})
	}
}

func share(buf []byte, i, n int) []byte { return buf[i*len(buf)/n : (i+1)*len(buf)/n] }

// carry moves buf through its connections, an equal share through each, as a rank does: without blocking, at most maxCopy at a time,
// and asleep while no connection is ready.
func carry(b *testing.B, fds []int, buf []byte, ready int16) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	left := make([][]byte, len(fds))
	polled := make([]unix.PollFd, len(fds))
	for i := range fds {
		left[i] = share(buf, i, len(fds))
		polled[i] = unix.PollFd{Fd: int32(fds[i]), Events: ready}
	}
	for open := len(fds); open > 0; {
		moved := false
		for i, fd := range fds {
			if len(left[i]) == 0 {
				continue
			}
			var v iovecs
			v.add(left[i][:min(len(left[i]), maxCopy)])
			move := sendv
			if ready == unix.POLLIN {
				move = recvv
			}
			n, errno := move(fd, &v)
			if errno == unix.EAGAIN {
				continue
			} else if errno != 0 || n == 0 {
				b.Errorf("moved %d bytes: %v", n, errno)
				return
			}
			moved = true
			if left[i] = left[i][n:]; len(left[i]) == 0 {
				polled[i].Fd = -1
				open--
			}
		}
		if !moved && open > 0 {
			_, _ = unix.Poll(polled, -1)
		}
	}
}

// pairs connects both ends as a mesh does.
func pairs(b *testing.B, n int) (out, in []int) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	take := func(c net.Conn, err error) int {
		if err != nil {
			b.Fatal(err)
		}
		fd, err := takeSocket(c)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	for range n {
		out = append(out, take(net.Dial("tcp", l.Addr().String())))
		in = append(in, take(l.Accept()))
	}
	return out, in
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
