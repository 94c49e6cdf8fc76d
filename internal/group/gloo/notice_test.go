// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloopresence"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

func asTCP(conn net.Conn) *net.TCPConn {
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// suspended is a connection of a process that does not get to run for a while between a deadline and the write under it.
type suspended struct{ *net.TCPConn }

func (c suspended) SetWriteDeadline(t time.Time) error {
	err := c.TCPConn.SetWriteDeadline(t)
	time.Sleep(2 * noticeTimeout)
	return err
}

// TestReasonOfASuspendedRank: a rank that gives the group up is not declared dead because the machine is busy.
func TestReasonOfASuspendedRank(t *testing.T) {
	t.Parallel()
	meshes := connectWorld(t, 2, func(rank int, c *Config) {
		if rank == 0 {
			c.Wrap = func(_ int, conn net.Conn) net.Conn { return suspended{asTCP(conn)} }
		}
	})
	meshes[0].Fail(cohort.New("test", cohort.Mismatch, "the sizes differ"))
	err := NewEngine(meshes[1]).Run(t.Context(), &collective.Request{Kind: collective.Barrier, Timeout: noticed})
	if !errors.Is(err, cohort.Mismatch) {
		t.Errorf("the other rank reports %v", err)
	}
}

// finalNotice is a connection that holds back what is written from a moment on.
type finalNotice struct {
	net.Conn
	hold  chan struct{} // closed: hold back
	held  chan struct{} // signalled when something is held back
	write chan struct{} // closed: continue
}

func (c *finalNotice) Write(b []byte) (int, error) {
	select {
	case <-c.hold:
		select {
		case c.held <- struct{}{}:
		default:
		}
		<-c.write
	default:
	}
	return c.Conn.Write(b)
}

func (c *finalNotice) SetWriteDeadline(time.Time) error { return nil } // it holds back for as long as the test wants

func (c *finalNotice) CloseWrite() error { return asTCP(c.Conn).CloseWrite() }

// TestReasonWithDataOnItsWay: what a peer sends to a rank that has failed, and cannot send its notice at once, is not an error of
// the peer, and does not end the connection before the reason is sent.
func TestReasonWithDataOnItsWay(t *testing.T) {
	t.Parallel()
	words := &finalNotice{hold: make(chan struct{}), held: make(chan struct{}, 1), write: make(chan struct{})}
	meshes := connectWorld(t, 2, func(rank int, c *Config) {
		if rank == 0 {
			c.Wrap = func(_ int, conn net.Conn) net.Conn {
				words.Conn = conn
				return words
			}
		}
	})
	ctx := within(t, noticed)
	// Rank 0 has offered room, and rank 1 knows it: the room was offered before the message was announced.
	slot := gloowire.Slot(gloowire.Broadcast, 7) // of a collective: its bytes are counted
	meshes[0].Recv(&transport.Op{Peer: 1, Slot: slot, Buf: make([]byte, 4)})
	meshes[0].Send(&transport.Op{Peer: 1, Slot: 8})
	known := &transport.Op{Peer: 0, Slot: 8}
	meshes[1].Recv(known)
	if err := meshes[1].Wait(ctx, known); err != nil {
		t.Fatal(err)
	}
	close(words.hold)
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		meshes[0].Fail(cohort.New("test", cohort.Mismatch, "the sizes differ"))
	}()
	<-words.held
	before := meshes[0].watch.moved.Load()
	data := &transport.Op{Peer: 0, Slot: slot, Buf: []byte("data")}
	meshes[1].Send(data)
	for meshes[0].watch.moved.Load() == before { // rank 0 reads it
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // and does with it what it did before this was mended
	close(words.write)
	err := NewEngine(meshes[1]).Run(ctx, &collective.Request{Kind: collective.Barrier, Timeout: noticed})
	if !errors.Is(err, cohort.Mismatch) {
		t.Errorf("the other rank reports %v", err)
	}
	<-failed
}

// reset ends a connection as the kernel does when its process dies with data unread.
func reset(m *Mesh, peer int) {
	p := m.devices[0].pairs[peer]
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.native = false
	_ = asTCP(p.conn).SetLinger(0)
	_ = p.conn.Close()
}

func awaitGone(t *testing.T, m *Mesh, rank int) {
	t.Helper()
	for ctx := within(t, noticed); !m.watch.recorded(rank); time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("rank %d does not notice that rank %d is lost", m.rank, rank)
		}
	}
}

// TestResetIsNotBackdated: rank 2 ends, then the connection of rank 1, quiet for long, is reset. The kernel knows when the last
// packet of rank 1 came, but that was not the reset.
func TestResetIsNotBackdated(t *testing.T) {
	t.Parallel()
	meshes := connectWorld(t, 3, func(_ int, c *Config) { c.plain = true })
	time.Sleep(60 * time.Millisecond) // the connections grow old
	sever(meshes[2])
	awaitGone(t, meshes[0], 2)
	reset(meshes[1], 0)
	awaitGone(t, meshes[0], 1)
	lostRank(t, meshes[0].Blame(&cohort.Error{Code: cohort.PeerLost, Rank: 1}), 2)
}

// TestResetInsideAMessage: a Go rank that gives up while it sends a large message cannot send a notice. That is not proof of its death.
func TestResetInsideAMessage(t *testing.T) {
	t.Parallel()
	losses := make(chan transport.Loss, 4)
	meshes := connectWorld(t, 2, func(rank int, c *Config) {
		if rank == 0 {
			c.OnLost = func(l transport.Loss) { losses <- l }
		}
	})
	room := &transport.Op{Peer: 1, Slot: 1, Buf: make([]byte, 1<<10)}
	meshes[0].Recv(room)
	conn := meshes[1].devices[0].pairs[0].conn
	half := append(frame(gloowire.SendReady, 1, 1<<10), append(frame(gloowire.Data, 1, 1<<10), make([]byte, 100)...)...)
	if _, err := conn.Write(half); err != nil {
		t.Fatal(err)
	}
	reset(meshes[1], 0)
	select {
	case l := <-losses:
		if l.How != transport.Ended {
			t.Errorf("%s: %v", l.How, l.Err)
		}
	case <-time.After(noticed):
		t.Fatal("no loss was reported")
	}
}

// unreadEnd is a connection of a process that does not run when the connection ends, until resumed is closed.
type unreadEnd struct {
	*net.TCPConn

	ended   chan<- struct{}
	resumed <-chan struct{}
}

func (c unreadEnd) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err != nil {
		c.ended <- struct{}{}
		<-c.resumed
	}
	return n, err
}

// TestResetAfterAPause: rank 0 does not run for longer than a consequence takes, and rank 2 ends meanwhile, then the connection of rank
// 1 is reset because of it. The kernel reports how old the end of rank 2 is, but not that of rank 1.
func TestResetAfterAPause(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the order of ends is known on Linux only")
	}
	ended, resumed := make(chan struct{}, 8), make(chan struct{})
	meshes := connectWorld(t, 3, func(rank int, c *Config) {
		c.plain = true
		if rank == 0 {
			c.Wrap = func(_ int, conn net.Conn) net.Conn { return unreadEnd{asTCP(conn), ended, resumed} }
		}
	})
	sever(meshes[2])
	<-ended
	time.Sleep(20 * time.Millisecond) // longer than the ticks of the kernel's clock
	reset(meshes[1], 0)
	<-ended
	time.Sleep(gloopresence.Grace + 100*time.Millisecond)
	close(resumed)
	awaitGone(t, meshes[0], 1)
	awaitGone(t, meshes[0], 2)
	lostRank(t, meshes[0].Blame(&cohort.Error{Code: cohort.PeerLost, Rank: 1}), 2)
}

// TestFirstOfThoseThatEndedUnread: rank 2 dies with data unread, so that its connection is reset. Rank 1, which sends no more than
// PyTorch does, ends because of it. Rank 0 does not run meanwhile and reads the two ends in any order; it blames rank 2.
func TestFirstOfThoseThatEndedUnread(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the order of ends is known on Linux only")
	}
	for range 5 {
		ended, resumed := make(chan struct{}, 8), make(chan struct{})
		meshes := connectWorld(t, 3, func(rank int, c *Config) {
			c.plain = true
			if rank == 0 {
				c.Wrap = func(_ int, conn net.Conn) net.Conn { return unreadEnd{asTCP(conn), ended, resumed} }
			}
		})
		wait := make(chan error, 1)
		go func() {
			wait <- NewEngine(meshes[0]).Run(within(t, 2*noticed), &collective.Request{Kind: collective.Barrier})
		}()
		reset(meshes[2], 0)
		<-ended
		time.Sleep(20 * time.Millisecond) // longer than the ticks of the clock by which the kernel reports how old a FIN is
		sever(meshes[1])
		<-ended
		time.Sleep(50 * time.Millisecond) // the FIN gets old
		close(resumed)
		lostRank(t, <-wait, 2)
		lostRank(t, meshes[0].Blame(&cohort.Error{Code: cohort.PeerLost, Rank: 1}), 2)
	}
}
