// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestLingering walks through the messages of a caller that comes and goes.
func TestLingering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l adaptivePoll
		for i, step := range []struct {
			wait  time.Duration
			alone bool
			want  bool
		}{
			{0, true, false},
			{0, true, true},
			{0, false, false},
			{0, true, true},
			{time.Second, true, true},
			{time.Second, true, true},
			{time.Second, true, true},
			{time.Second, true, true},
			{time.Second, true, false},
			{time.Second, true, false},
			{0, true, false},
			{time.Second, true, true},
			{0, true, true},
		} {
			l.begin(step.alone)
			if l.on != step.want {
				t.Errorf("step %d: polls: %v, want %v", i, l.on, step.want)
			}
			time.Sleep(step.wait)
			l.arrived()
		}
	})
}

// TestIdleDoesNotLinger lets a receiver wait for long behind a message that came at once. Meanwhile others may nap.
func TestIdleDoesNotLinger(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one may
	client, server := pair(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	if err := client.Send(ctx, rpcMessage(0x102, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	if err := server.Send(ctx, rpcMessage(0x203, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if !server.requests.idle() || server.poll.credit == 0 {
		t.Fatal("the receiver does not poll")
	}
	done := make(chan error, 1)
	go func() {
		_, err := server.Recv(ctx)
		done <- err
	}()
	time.Sleep(5 * pollTime) // probably the poll has ended
	testkit.Until(t, "a goroutine may sleep", spinwait.BeginRawSleep)
	spinwait.EndRawSleep()
	cancel()
	if err := <-done; !errors.Is(err, cohort.Canceled) {
		t.Error(err)
	}
}

// TestLeastMessage lays out the smallest message that PyTorch sends.
func TestLeastMessage(t *testing.T) {
	client, _ := pair(t)
	steps, err := client.steps(rpcMessage(0x102, 0, nil))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, b := range steps[0].bufs {
		n += len(b)
	}
	if n != minMessage {
		t.Errorf("%d bytes, want %d", n, minMessage)
	}
}

func id(m *Message) uint64 { return binary.LittleEndian.Uint64(m.Payloads[1]) }

// TestOneByOne sends requests of all shapes one after the other, which is when the receiver polls, with pauses in which
// it stops to. A message that is smaller than any of PyTorch's arrives, too.
func TestOneByOne(t *testing.T) {
	client, server := pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	shapes := []struct {
		payload  int
		storages []int
	}{
		{10, nil},
		{10, []int{8}},
		{0, nil},
		{200, []int{8, 0, 100}},
		{readBuffer, []int{3}},
		{4 * readBuffer, []int{1 << 20}},
		{1 << 20, []int{5}},
		{10, []int{2 << 20}},
		{0, []int{0}},
		{0, []int{0, 1}},
		{1 << 20, nil},
	}
	go func() {
		for {
			m, err := server.Recv(ctx)
			if err != nil {
				return
			}
			answer := rpcMessage(0x203, id(m), m.Payloads[2])
			answer.Storages = m.Storages
			if err := server.Send(ctx, answer); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for n := range uint64(300) {
		shape := shapes[n%uint64(len(shapes))]
		if n > 44 {
			shape = shapes[n%4]
		}
		payload := bytes.Repeat([]byte{byte(n)}, shape.payload)
		var storages [][]byte
		for i, size := range shape.storages {
			storages = append(storages, bytes.Repeat([]byte{byte(n) + byte(i)}, size))
		}
		request := rpcMessage(0x102, n, payload, storages...)
		if n%7 == 0 {
			request.Payloads[3] = []byte("\x80\x02N.") // fits no PyTorch worker
		}
		if err := client.Send(ctx, request); err != nil {
			t.Fatal(err)
		}
		m, err := client.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if id(m) != n || !bytes.Equal(m.Payloads[2], payload) || len(m.Storages) != len(storages) {
			t.Fatalf("request %d: another answer", n)
		}
		for i, s := range m.Storages {
			if data, err := s.Bytes(); err != nil || !bytes.Equal(data, storages[i]) {
				t.Fatalf("request %d: storage %d differs, %v", n, i, err)
			}
		}
		if n%50 == 0 {
			time.Sleep(3 * pollTime)
		}
	}
}
