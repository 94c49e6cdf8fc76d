// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSilence checks that the kernel asks idle connections soon and gives a machine up late, on both sides of a pipe, and
// that the time of the last packet can be read.
func TestSilence(t *testing.T) {
	client, server := pair(t)
	for side, nc := range map[string]net.Conn{"dialled": client.main.nc, "accepted": server.main.nc} {
		sc, ok := nc.(syscall.Conn)
		if !ok {
			t.Fatalf("%s: a %T", side, nc)
		}
		raw, err := sc.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err = raw.Control(func(fd uintptr) {
			for option, want := range map[int]int{unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 30} {
				if got, optErr := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); optErr != nil || got != want {
					t.Errorf("%s: option %d is %d, %v; want %d", side, option, got, optErr, want)
				}
			}
			if got, optErr := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT); side == "dialled" &&
				(optErr != nil || got != synRetries) {
				t.Errorf("%d repetitions of the first packet, %v; want %d", got, optErr, synRetries)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond)
	before := client.Silence()
	if silent := server.Silence(); min(before, silent) < 200*time.Millisecond {
		t.Errorf("a silence of %v and %v where nothing was sent for 300 ms", before, silent)
	}
	if err := client.Send(context.Background(), rpcMessage(0x102, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Recv(context.Background()); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for client.Silence() >= before { // the other machine says that it has got it, perhaps a moment later
		if time.Now().After(deadline) {
			t.Fatalf("a silence of %v after something was sent", client.Silence())
		}
		time.Sleep(time.Millisecond)
	}
}
