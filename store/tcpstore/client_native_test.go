// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/store/storewire/storecapture"
	"github.com/cohort-dist/cohort/store"
)

// held is a native server that answers only when the test says so.
type held struct {
	mu       sync.Mutex
	conn     net.Conn
	waiting  map[string]uint32 // key of a GET: its id
	canceled []uint32
}

func (h *held) on(_ int, conn net.Conn, r *wire.Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = conn
	switch r.Op {
	case wire.Get:
		if h.waiting == nil {
			h.waiting = map[string]uint32{}
		}
		h.waiting[string(r.Key[1:])] = r.ID
	case wire.CancelWait:
		h.canceled = append(h.canceled, r.Nonce)
		for key, id := range h.waiting {
			if id == r.Nonce {
				delete(h.waiting, key)
				_, _ = conn.Write(frameReply(id, byte(cohort.Canceled), []byte("cancelled")))
			}
		}
	case wire.Add:
		_, _ = conn.Write(frameReply(r.ID, 0, intReply(r.Num)))
	case wire.QueuePop: // taken when it is cancelled: the item is on its way
		go func() {
			time.Sleep(time.Second)
			_, _ = conn.Write(frameReply(r.ID, 0, append(intReply(1), bytesReply("item")...)))
		}()
	default:
	}
	return true
}

func (h *held) answer(t *testing.T, key string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	id, ok := h.waiting[key]
	if !ok {
		t.Errorf("no call asks for %q", key)
	}
	delete(h.waiting, key)
	_, _ = h.conn.Write(frameReply(id, 0, bytesReply("value of "+key)))
}

func TestNativeAnswersInAnyOrder(t *testing.T) {
	h := &held{}
	onFake(t, fakeNative, h.on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		const calls = 50
		type result struct {
			key, value string
			err        error
		}
		results := make(chan result, calls)
		for i := range calls {
			go func() {
				key := strconv.Itoa(i)
				v, err := c.Get(t.Context(), key)
				results <- result{key, string(v), err}
			}()
		}
		synctest.Wait()
		for i := range calls {
			key := strconv.Itoa((i*17 + 3) % calls)
			h.answer(t, key)
			if r := <-results; r.key != key || r.value != "value of "+key || r.err != nil {
				t.Fatalf("answer to %q went to %+v", key, r)
			}
			if n, err := c.Add(t.Context(), "n", int64(i)); n != int64(i) || err != nil { // passes all that wait
				t.Fatalf("add: %d, %v", n, err)
			}
		}
		if conns, _ := f.counts(); conns != 1 {
			t.Errorf("%d connections", conns)
		}
	})
}

// TestNativeCancel: a call that ends by its context tells the server, returns at once, and leaves the connection usable;
// whichever call leads, the others go on.
func TestNativeCancel(t *testing.T) {
	h := &held{}
	onFake(t, fakeNative, h.on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		const calls = 20
		var done sync.WaitGroup
		for i := range calls {
			done.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				start := time.Now()
				_, err := c.Get(ctx, "never"+strconv.Itoa(i))
				if took := time.Since(start); took != time.Duration(i+1)*time.Second || !errors.Is(err, store.ErrTimeout) ||
					!errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("call %d ended after %v with %v", i, took, err)
				}
			})
		}
		got := make(chan error, 1)
		go func() {
			v, err := c.Get(t.Context(), "late")
			if string(v) != "value of late" && err == nil {
				err = errors.New("wrong value")
			}
			got <- err
		}()
		done.Wait()
		synctest.Wait()
		if len(h.canceled) != calls {
			t.Errorf("%d of %d calls were cancelled at the server", len(h.canceled), calls)
		}
		h.answer(t, "late")
		if err := <-got; err != nil {
			t.Error(err)
		}
		if n, err := c.Add(t.Context(), "n", 3); n != 3 || err != nil {
			t.Errorf("add: %d, %v", n, err)
		}
		m := currentNative(t, c)
		if m.mu.abandoned != 0 || len(m.mu.calls) != 0 || m.mu.reading || m.mu.writing {
			t.Errorf("left behind: %d abandoned, %d calls, reading %v, writing %v", m.mu.abandoned, len(m.mu.calls), m.mu.reading,
				m.mu.writing)
		}
		if conns, _ := f.counts(); conns != 1 {
			t.Errorf("%d connections", conns)
		}
	})
}

func currentNative(t *testing.T, c *Client) *nativeConn {
	t.Helper()
	s, ok := c.back.(*nativeStore)
	if !ok {
		t.Fatalf("the client has a %T", c.back)
	}
	return s.current.Load()
}

func TestNativeCallsEndByTheStoreTimeout(t *testing.T) {
	h := &held{}
	onFake(t, fakeNative, h.on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		for _, timeout := range []time.Duration{time.Minute, time.Second, time.Hour, time.Millisecond} { // deadlines get shorter and longer
			c.SetTimeout(timeout)
			start := time.Now()
			_, err := c.Get(t.Context(), "never")
			if took := time.Since(start); took != timeout || !errors.Is(err, store.ErrTimeout) ||
				!strings.Contains(err.Error(), timeout.String()) {
				t.Errorf("after %v: %v", took, err)
			}
			if n, err := c.Add(t.Context(), "n", 1); n != 1 || err != nil {
				t.Errorf("add: %d, %v", n, err)
			}
		}
		c.SetTimeout(0) // no bound
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(1000*time.Hour, cancel)
		if _, err := c.Get(ctx, "never"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestNativePopDoesNotLoseAnItem(t *testing.T) {
	h := &held{}
	onFake(t, fakeNative, h.on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if got, err := c.QueuePop(ctx, "q", true); string(got) != "item" || err != nil {
			t.Errorf("%q, %v: the item was on its way when the time was up", got, err)
		}
	})
}

// TestNativeWriteBlocked: a server that stops reading holds up no call beyond its context, and no frame is torn.
func TestNativeWriteBlocked(t *testing.T) {
	var resume chan struct{} // made inside the bubble
	blocked := false
	var sizes []int
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		if !blocked {
			blocked = true
			<-resume
		}
		switch r.Op {
		case wire.Set:
			sizes = append(sizes, len(r.Value))
			_, _ = conn.Write(frameReply(r.ID, 0, nil))
		case wire.Add:
			_, _ = conn.Write(frameReply(r.ID, 0, intReply(r.Num)))
		default:
		}
		return true
	}
	onFake(t, fakeNative, on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		resume = make(chan struct{})
		first := make(chan error, 1)
		go func() { _, err := c.Add(t.Context(), "n", 1); first <- err }()
		synctest.Wait()
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				start := time.Now()
				err := c.Set(ctx, "big", make([]byte, 1<<20))
				if took := time.Since(start); took != time.Duration(i+1)*time.Second || !errors.Is(err, store.ErrTimeout) {
					t.Errorf("set %d ended after %v with %v", i, took, err)
				}
			})
		}
		group.Wait()
		if m := currentNative(t, c); len(m.mu.out) > maxQueued+(2<<20) {
			t.Errorf("%d bytes are queued", len(m.mu.out))
		}
		close(resume)
		if err := <-first; err != nil {
			t.Errorf("the first add: %v", err)
		}
		if n, err := c.Add(t.Context(), "n", 7); n != 7 || err != nil {
			t.Errorf("add after it: %d, %v", n, err)
		}
		synctest.Wait()
		for _, n := range sizes {
			if n != 1<<20 {
				t.Errorf("a set of %d bytes arrived", n)
			}
		}
	})
}

func TestNativeGivesUpOnAHungServer(t *testing.T) {
	onFake(t, fakeNative, func(int, net.Conn, *wire.Request) bool { return true }, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		c.SetTimeout(time.Millisecond)
		for i := range maxAbandoned + 1 {
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, store.ErrTimeout) {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		if m := currentNative(t, c); m.broken() == nil || len(m.mu.calls) != 0 {
			t.Errorf("%v, %d calls are kept", m.broken(), len(m.mu.calls))
		}
	})
}

func TestNativeErrorsComeFromTheServer(t *testing.T) {
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.Add:
			_, _ = conn.Write(frameReply(r.ID, byte(cohort.NotANumber), []byte(`the value "abc" is text`)))
		case wire.CompareSet:
			_, _ = conn.Write(frameReply(r.ID, 0, []byte("short"))) // a body that does not fit
		case wire.DeleteKey:
			_, _ = conn.Write(frameReply(r.ID+100, 0, intReply(1))) // not asked for
		default:
		}
		return true
	}
	onFake(t, fakeNative, on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		_, err := c.Add(t.Context(), "n", 1)
		if !errors.Is(err, store.ErrNotANumber) ||
			!strings.Contains(err.Error(), `tcpstore: add "n": not a number (peer fake:1): the value "abc" is text`) {
			t.Errorf("add: %v", err)
		}
		if _, err := c.CompareAndSet(t.Context(), "k", nil, nil); !errors.Is(err, cohort.Protocol) {
			t.Errorf("compare-and-set: %v", err)
		}
		if _, err := c.Delete(t.Context(), "k"); !errors.Is(err, cohort.Protocol) {
			t.Errorf("delete: %v", err)
		}
		if _, err := c.Add(t.Context(), "n", 1); !errors.Is(err, store.ErrNotANumber) { // on a new connection
			t.Errorf("add: %v", err)
		}
		if conns, _ := f.counts(); conns != 2 {
			t.Errorf("%d connections", conns)
		}
	})
}

// TestNativeLargeReplies are put together from many reads, between small ones.
func TestNativeLargeReplies(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.Get:
			_, _ = conn.Write(append(frameReply(r.ID, 0, wire.AppendBytes(nil, big)), frameReply(r.ID+1, 0, intReply(9))[:5]...))
		case wire.Add:
			_, _ = conn.Write(frameReply(r.ID, 0, intReply(9))[5:])
		default:
		}
		return true
	}
	onFake(t, fakeNative, on, func(t *testing.T, c *Client, _ *fakeStore) {
		t.Helper()
		for range 3 {
			got, err := c.Get(t.Context(), "k")
			if !bytes.Equal(got, big) || err != nil {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			got[0] = 'x' // it belongs to the caller
			if n, err := c.Add(t.Context(), "n", 1); n != 9 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
	})
}

// TestNativeReadsAnswersOfCallsGivenUp: a large answer to a call that was given up must not block the server.
func TestNativeReadsAnswersOfCallsGivenUp(t *testing.T) {
	sent := make([]bool, 1)
	on := func(_ int, conn net.Conn, r *wire.Request) bool {
		switch r.Op {
		case wire.Get:
			time.Sleep(time.Second)
			_, err := conn.Write(frameReply(r.ID, 0, wire.AppendBytes(nil, make([]byte, 8<<20))))
			sent[0] = err == nil
		case wire.Add:
			_, _ = conn.Write(frameReply(r.ID, 0, intReply(r.Num)))
		default:
		}
		return true
	}
	onFake(t, fakeNative, on, func(t *testing.T, c *Client, f *fakeStore) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := c.Get(ctx, "k"); !errors.Is(err, store.ErrTimeout) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if m := currentNative(t, c); !sent[0] || m.mu.abandoned != 0 || m.mu.reading {
			t.Errorf("answer read: %v, %d abandoned, reading %v", sent[0], m.mu.abandoned, m.mu.reading)
		}
		if n, err := c.Add(t.Context(), "n", 4); n != 4 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if conns, _ := f.counts(); conns != 1 {
			t.Errorf("%d connections", conns)
		}
	})
}

// FuzzNativeReplies feeds a client arbitrary answers: it must neither panic nor hang nor take memory for lengths alone.
func FuzzNativeReplies(f *testing.F) {
	f.Add([]byte{})
	f.Add(frameReply(1, 0, bytesReply("value")))
	f.Add(frameReply(1, 0, bytesReply("value"))[:9])
	f.Add(frameReply(1, byte(cohort.TooLarge), []byte("text")))
	f.Add(frameReply(2, 0, nil))
	f.Add([]byte{255, 255, 255, 63, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, q := range []*request{
			{op: wire.Get, key: "k"},
			{op: wire.MultiGet, keys: []string{"a", "b"}},
			{op: wire.Add},
			{op: wire.ListKeys},
			{op: wire.QueuePop},
			{op: wire.Set},
			{op: wire.Stats},
			{op: wire.Check, keys: []string{"a"}},
		} {
			client, server := net.Pipe()
			go func() {
				buf := make([]byte, 4096)
				_, _ = server.Read(buf)
				_, _ = server.Write(data)
				_ = server.Close()
			}()
			var helpers sync.WaitGroup
			m := newNativeConn(storedial.Conn{Conn: client}, &helpers, &knownStore{}, &lostCalls{}, nil)
			r, err := m.do(context.Background(), time.Time{}, q)
			if err == nil && len(r.Value) > len(data) {
				t.Errorf("a value of %d bytes from %d", len(r.Value), len(data))
			}
			m.fail(cohort.Closed)
			helpers.Wait()
		}
	})
}

// FuzzTorchReplies does the same for PyTorch's dialects, seeded with what real servers sent.
func FuzzTorchReplies(f *testing.F) {
	f.Add(uint8(wire.Get), bytesReply("value"))
	f.Add(uint8(wire.Get), []byte{255, 255, 255, 255, 255, 255, 255, 255})
	f.Add(uint8(wire.MultiGet), append(bytesReply("a"), bytesReply("")...))
	f.Add(uint8(wire.QueuePop), append(intReply(1), bytesReply("item")...))
	f.Add(uint8(wire.ListKeys), append(intReply(2), append(bytesReply("/a"), bytesReply("init/")...)...))
	f.Add(uint8(wire.Add), intReply(-1))
	f.Add(uint8(wire.CancelWait), []byte{0, 1})
	blocks, err := storecapture.Load("2.6")
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range blocks {
		for i, item := range b.Items {
			if i > 0 && !item.Request && b.Items[i-1].Request {
				f.Add(b.Items[i-1].Data[0], item.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, code uint8, data []byte) {
		op, ok := wire.OpOf(wire.V, code)
		if !ok || !wire.HasReply(wire.V, op) {
			return
		}
		client, server := net.Pipe()
		go func() {
			for len(data) > 0 {
				n := min(len(data), 7)
				if _, err := server.Write(data[:n]); err != nil {
					return
				}
				data = data[n:]
			}
			_ = server.Close()
		}()
		c := &torchConn{conn: client, dialect: wire.V}
		if op == wire.CancelWait {
			c.cancelled = 2
			_ = c.drain()
		} else if r, err := c.reply(op, 2); err == nil && len(r.Value) > cap(c.buf) {
			t.Errorf("a value of %d bytes", len(r.Value))
		}
		if cap(c.buf) > 4<<20 {
			t.Errorf("a buffer of %d bytes", cap(c.buf))
		}
		_ = client.Close()
	})
}
