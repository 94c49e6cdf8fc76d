// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"io"
	"net"
	"testing"
	"time"
)

// blindDial opens a pipe as PyTorch does, which does not look at connections that it does not need: it never learns that one was
// cut. The others are given their numbers; cut gets those of which only the first bytes of the hello arrive.
func blindDial(t *testing.T, addr string, cut func(plan sessionPlan, id uint64) bool) *stream {
	t.Helper()
	open := func() net.Conn {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		return nc
	}
	main := newStream(open(), time.Hour)
	offer := offerer{Name: "py", Channels: []string{ChannelBasic}}
	packet, brochure := offer.Hello()
	if err := main.writeFrames(packet, brochure); err != nil {
		t.Fatal(err)
	}
	frame, err := main.readFrame(maxHandshake, "an answer")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := offer.Answered(frame)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{plan.Reply, plan.ChannelID} {
		nc := open()
		hello := appendFrame(nil, packetFrame{Requested: true, ID: id}.Append(nil))
		if cut(plan, id) {
			_, _ = nc.Write(hello[:len(hello)-1])
			_ = nc.Close()
			continue
		}
		if _, err := nc.Write(hello); err != nil {
			t.Fatal(err)
		}
	}
	return main
}

// unreadSoon makes an endpoint give up by nothing but a connection that ended unread.
func unreadSoon() []Option {
	return []Option{
		withHandshakeTimeout(time.Hour), withStallTimeout(time.Hour),
		option(func(c *config) error { c.unread = 100 * time.Millisecond; return nil }),
	}
}

// TestChannelIsCutUnread: the listening side ends a pipe whose connection for tensors was cut before its hello arrived. No other goroutine
// else can: the other side does not look there.
func TestChannelIsCutUnread(t *testing.T) {
	b := listen(t, "b", unreadSoon()...)
	main := blindDial(t, b.Addr().String(), func(plan sessionPlan, id uint64) bool { return id == plan.ChannelID })
	_ = main.nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := main.br.ReadByte(); err != io.EOF {
		t.Fatalf("the pipe goes on: %v", err)
	}
}

// TestReplyIsCutUnread: the connection for replies to descriptors is not used, so a pipe goes on without it.
func TestReplyIsCutUnread(t *testing.T) {
	b := listen(t, "b", unreadSoon()...)
	main := blindDial(t, b.Addr().String(), func(plan sessionPlan, id uint64) bool { return id == plan.Reply })
	s, err := b.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	m := rpcMessage(0x102, 1, []byte("x"))
	steps, err := (&Pipe{cfg: b.cfg, main: main}).steps(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := steps[0].run(within(t)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pipe.Recv(within(t)); err != nil || string(got.Payloads[2]) != "x" {
		t.Fatalf("received %v, %v", got, err)
	}
}

// TestUnrelatedConnectionEndsEarly: a connection that has nothing to do with a pipe and ends before its hello costs it nothing.
func TestUnrelatedConnectionEndsEarly(t *testing.T) {
	opts := append(unreadSoon(), option(func(c *config) error { c.unread = time.Hour; return nil }))
	b := listen(t, "b", opts...)
	blindDial(t, b.Addr().String(), func(sessionPlan, uint64) bool {
		nc, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.Close()
		return false
	})
	s, err := b.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}

// TestUnreadIsTheMissing: connections that end without a word put a pipe in doubt only if they came after it, from its
// host, and are as many as it waits for.
func TestUnreadIsTheMissing(t *testing.T) {
	b := listen(t, "b")
	main, other := net.Pipe()
	t.Cleanup(func() { _, _ = main.Close(), other.Close() })
	s := newStream(main, time.Hour)
	o := b.beginSetup("py", s)
	defer o.forget()
	reply, channel := o.register(), o.register()
	unread := func(host string, came time.Time, want bool) {
		t.Helper()
		b.unread(&unidentifiedConn{host: host, came: came})
		if o.missingMayBeLost() != want {
			t.Errorf("a connection of %s of %v: in doubt: %v", host, came, !want)
		}
	}
	unread(o.host, o.began.Add(-time.Second), false)
	unread("192.0.2.1", time.Now(), false)
	unread(o.host, time.Now(), false) // one of two that are missing
	if err := b.arrived(reply, s); err != nil {
		t.Fatal(err)
	}
	if !o.missingMayBeLost() {
		t.Error("the only one that is missing may be the one that has ended")
	}
	select {
	case <-o.changed:
	default:
		t.Error("no notification")
	}
	if err := b.arrived(channel, s); err != nil {
		t.Fatal(err)
	}
}
