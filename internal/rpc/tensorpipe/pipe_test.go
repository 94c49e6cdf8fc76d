// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var emptyTable = []byte("\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.")

func rpcMessage(kind uint32, id uint64, payload []byte, storages ...[]byte) *Message {
	m := &Message{Payloads: [][]byte{
		binary.LittleEndian.AppendUint32(nil, kind), binary.LittleEndian.AppendUint64(nil, id), payload, emptyTable,
	}}
	for _, data := range storages {
		m.Storages = append(m.Storages, tensor.WrapStorage(data, "test", nil))
	}
	return m
}

func listen(t *testing.T, name string, opts ...Option) *Endpoint {
	t.Helper()
	ep, err := Listen(name, "127.0.0.1:0", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	return ep
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pair connects two endpoints by a pipe.
func pair(t *testing.T, opts ...Option) (client, server *Pipe) {
	t.Helper()
	a, b := listen(t, "a", opts...), listen(t, "b", opts...)
	ctx := within(t)
	s, err := a.Dial(ctx, b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got.Peer != "a" || got.Dialled || !s.Dialled {
		t.Fatalf("sessions %+v and %+v", s, got)
	}
	t.Cleanup(func() { _ = s.Close(); _ = got.Close() })
	return s.Pipe, got.Pipe
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestMessagesBothWays(t *testing.T) {
	for _, channel := range []string{ChannelBasic, ChannelMPT} {
		t.Run(channel, func(t *testing.T) {
			client, server := pair(t, WithChannels(channel))
			ctx := within(t)
			var wg sync.WaitGroup
			defer wg.Wait()
			sizes := [][]int{{}, {0}, {1}, {15, 0, 17}, {1 << 20}, {100_000, 5 << 20, 3}}
			wg.Go(func() {
				for range sizes {
					m, err := server.Recv(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					answer := &Message{Payloads: m.Payloads, Storages: m.Storages}
					answer.Payloads[0] = binary.LittleEndian.AppendUint32(nil, 0x203)
					if err := server.Send(ctx, answer); err != nil {
						t.Error(err)
					}
				}
			})
			for i, lengths := range sizes {
				var storages [][]byte
				for _, n := range lengths {
					storages = append(storages, pattern(n))
				}
				payload := pattern(i * i * 5000)
				if err := client.Send(ctx, rpcMessage(0x102, uint64(i), payload, storages...)); err != nil {
					t.Fatal(err)
				}
				m, err := client.Recv(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(m.Payloads[2], payload) || len(m.Storages) != len(storages) {
					t.Fatalf("message %d came back different", i)
				}
				for k, s := range m.Storages {
					if b, _ := s.Bytes(); !bytes.Equal(b, storages[k]) {
						t.Fatalf("storage %d of message %d came back different", k, i)
					}
				}
			}
		})
	}
}

func TestLedgerRefusesWhatAborts(t *testing.T) {
	client, server := pair(t)
	ctx := within(t)
	for name, m := range map[string]*Message{
		"three payloads":  {Payloads: rpcMessage(0x102, 0, nil).Payloads[:3]},
		"short id":        {Payloads: [][]byte{{2, 1, 0, 0}, {1}, nil, emptyTable}},
		"no direction":    rpcMessage(0x002, 0, nil),
		"both directions": rpcMessage(0x302, 0, nil),
		"a response":      rpcMessage(0x203, 0, nil),
		"no table":        {Payloads: [][]byte{{2, 1, 0, 0}, make([]byte, 8), nil, nil}},
	} {
		if err := client.Send(ctx, m); !errors.Is(err, cohort.Internal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := client.Send(ctx, rpcMessage(0x102, 5, nil)); err != nil {
		t.Fatal(err)
	}
	if err := client.Send(ctx, rpcMessage(0x102, 5, nil)); !errors.Is(err, cohort.Internal) {
		t.Errorf("the same id twice: %v", err)
	}
	if _, err := server.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	if err := server.Send(ctx, rpcMessage(0x203, 6, nil)); !errors.Is(err, cohort.Internal) {
		t.Errorf("an unknown id: %v", err)
	}
	if err := server.Send(ctx, rpcMessage(0x102, 5, nil)); !errors.Is(err, cohort.Internal) {
		t.Errorf("a request from the listening side: %v", err)
	}
	if err := server.Send(ctx, rpcMessage(0x203, 5, nil)); err != nil {
		t.Fatal(err)
	}
	if err := server.Send(ctx, rpcMessage(0x203, 5, nil)); !errors.Is(err, cohort.Internal) {
		t.Errorf("a second answer: %v", err)
	}
	if _, err := client.Recv(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRecvEndsWithItsContext(t *testing.T) {
	client, server := pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := server.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("recv: %v", err)
	}
	// Nothing had begun, so the pipe goes on.
	if err := client.Send(within(t), rpcMessage(0x102, 1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Recv(within(t)); err != nil {
		t.Fatal(err)
	}
}

// TestSendOutlivesItsContext checks that a caller who leaves does not break the pipe for others.
func TestSendOutlivesItsContext(t *testing.T) {
	client, server := pair(t)
	data := pattern(64 << 20)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := client.Send(ctx, rpcMessage(0x102, 1, nil, data)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("send into a peer that does not read: %v", err)
	}
	short, cancelShort := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancelShort()
	if err := client.Send(short, rpcMessage(0x102, 2, nil)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("send behind it: %v", err)
	}
	m, err := server.Recv(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := m.Storages[0].Bytes(); !bytes.Equal(b, data) {
		t.Fatal("the rest was not written")
	}
	if err = client.Send(within(t), rpcMessage(0x102, 3, nil)); err != nil {
		t.Fatal(err)
	}
	if m, err = server.Recv(within(t)); err != nil || m.Payloads[1][0] != 3 {
		t.Fatalf("after it: %v, %v", m, err)
	}
}

func TestStalledPeerIsCut(t *testing.T) {
	client, _ := pair(t, withStallTimeout(100*time.Millisecond))
	m := rpcMessage(0x102, 1, nil, pattern(64<<20)) // takes its time
	err := client.Send(within(t), m)
	if !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("send: %v", err)
	}
	<-client.Done()
}

func TestPeerDeathIsSeenAtOnce(t *testing.T) {
	client, server := pair(t)
	_ = server.Close()
	if _, err := client.Recv(within(t)); !errors.Is(err, cohort.PeerLost) {
		t.Fatalf("recv: %v", err)
	}
	if err := client.Send(within(t), rpcMessage(0x102, 1, nil)); err == nil {
		t.Fatal("send on a dead pipe")
	}
}

// raw opens a TCP connection and writes frames by hand.
func raw(t *testing.T, ep *Endpoint, frames ...[]byte) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", ep.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	for _, f := range frames {
		if _, err := nc.Write(appendFrame(nil, f)); err != nil {
			t.Fatal(err)
		}
	}
	return nc
}

// TestBadPeerLosesItsOwnConnection throws garbage at a listener that serves another peer meanwhile.
func TestBadPeerLosesItsOwnConnection(t *testing.T) {
	b := listen(t, "b", withHandshakeTimeout(200*time.Millisecond))
	a := listen(t, "a")
	ctx := within(t)
	s, err := a.Dial(ctx, b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); _ = got.Close() })
	hello, brochure := offerer{Name: "x", Channels: []string{ChannelBasic}}.Hello()
	for name, write := range map[string]func() net.Conn{
		"http": func() net.Conn {
			nc := raw(t, b)
			_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\n\r\n")
			return nc
		},
		"huge length":         func() net.Conn { nc := raw(t, b); _, _ = nc.Write(bytes.Repeat([]byte{0xff}, 8)); return nc },
		"not nop":             func() net.Conn { return raw(t, b, []byte("hello")) },
		"unknown id":          func() net.Conn { return raw(t, b, packetFrame{Requested: true, ID: 77}.Append(nil)) },
		"bad brochure":        func() net.Conn { return raw(t, b, hello, []byte{1, 2, 3}) },
		"silence":             func() net.Conn { return raw(t, b) },
		"hello, then silence": func() net.Conn { return raw(t, b, hello) },
		"connections missing": func() net.Conn { return raw(t, b, hello, brochure) },
	} {
		nc := write()
		_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, nc); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s: the connection was not closed", name)
			}
		}
		if err := s.Pipe.Send(ctx, rpcMessage(0x102, uint64(len(name)), nil)); err != nil {
			t.Fatalf("%s: the other peer lost its pipe: %v", name, err)
		}
		if _, err := got.Pipe.Recv(ctx); err != nil {
			t.Fatalf("%s: the other peer lost its pipe: %v", name, err)
		}
		if err := got.Pipe.Send(ctx, rpcMessage(0x203, uint64(len(name)), nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pipe.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBadMessagesBreakThePipe sends what a descriptor must not say.
func TestBadMessagesBreakThePipe(t *testing.T) {
	for name, frame := range map[string][]byte{
		"not nop":      {1},
		"huge payload": descriptor{Payloads: []uint64{4, 8, 1 << 62, 47}}.Append(nil),
		"huge storage": descriptor{
			Payloads: []uint64{4, 8, 0, 47},
			Storages: []storageDescriptor{{Length: 1 << 62, Source: cpu, Target: cpu}},
		}.Append(nil),
		"a GPU": descriptor{
			Payloads: []uint64{4, 8, 0, 47},
			Storages: []storageDescriptor{{Length: 8, Source: cpu, Target: device{"cuda", 0}}},
		}.Append(nil),
		"too many storages": append([]byte{0xb9, 3, 0xbd, 0, 0xba, 0, 0xba, 0x82}, 0xff, 0xff, 0xff, 0x7f),
		"another frame":     bytes.Repeat([]byte{0xff}, 16),
	} {
		client, server := pair(t)
		if _, err := client.main.nc.Write(appendFrame(nil, frame)); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Recv(within(t)); err == nil {
			t.Errorf("%s: accepted", name)
		}
		<-server.Done()
	}
}

// TestCancelledDialFinishesItsHello counts what a listener sees of dials whose context ends at once.
func TestCancelledDialFinishesItsHello(t *testing.T) {
	// As a listener of PyTorch, this one also believes those who have closed their end.
	b := listen(t, "b", option(func(c *config) error {
		c.judge = func(net.Conn) peeruid.Verdict { return peeruid.Accepted }
		return nil
	}))
	a, err := New("a")
	if err != nil {
		t.Fatal(err)
	}
	const dials = 20
	for range dials {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if s, err := a.Dial(ctx, b.Addr().String()); err == nil {
			_ = s.Close()
		}
	}
	for i := range dials { // every one arrives as a whole pipe
		s, err := b.Accept(within(t))
		if err != nil {
			t.Fatalf("dial %d did not arrive: %v", i, err)
		}
		_ = s.Close()
	}
	_ = a.Close()
}

func TestDialErrors(t *testing.T) {
	a := listen(t, "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	_ = l.Close()
	if _, err := a.Dial(within(t), gone); !errors.Is(err, cohort.Unavailable) {
		t.Errorf("connection refused: %v", err)
	}
	_ = a.Close()
	if _, err := a.Dial(within(t), gone); !errors.Is(err, cohort.Closed) {
		t.Errorf("closed endpoint: %v", err)
	}
	if _, err := a.Accept(within(t)); !errors.Is(err, cohort.Closed) {
		t.Errorf("accept on a closed endpoint: %v", err)
	}
	if _, err := New("x", WithChannels("cma")); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("unknown channel: %v", err)
	}
}
