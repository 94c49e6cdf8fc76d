// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// frameHead is the length that precedes every frame of the uv transport.
const frameHead = 8

// readBuffer suits a message of a few small payloads; longer ones are read straight into their memory.
const readBuffer = 16 << 10

// writeChunk is how much is handed to the kernel between two checks of the clock.
const writeChunk = 4 << 20

// stream is one TCP connection of a pipe, cut into frames.
type stream struct {
	nc    net.Conn
	br    *bufio.Reader
	stall time.Duration
	set   time.Time    // when the write deadline was set; owned by the writer
	own   unpolledConn // nc, where the runtime does not watch it; else nil
}

func newStream(nc net.Conn, stall time.Duration) *stream {
	s := &stream{nc: nc, stall: stall}
	s.br = bufio.NewReaderSize(s, readBuffer)
	return s
}

// Read is for the buffer.
func (s *stream) Read(b []byte) (int, error) { return s.nc.Read(b) }

// takeOver lets the receiver wait by itself. The connection must not be in use meanwhile.
func (s *stream) takeOver(l *adaptivePoll) {
	s.nc = takeOver(s.nc, l)
	s.own, _ = s.nc.(unpolledConn)
}

// expect announces how many bytes will certainly arrive, those in the buffer included.
func (s *stream) expect(n int) {
	if s.own != nil {
		s.own.expect(n - s.br.Buffered())
	}
}

// readHead reads the length of the next frame.
func (s *stream) readHead(limit int64, what string) (int, error) {
	head, err := s.br.Peek(frameHead)
	if err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(head)
	if n > uint64(limit) { //nolint:gosec // limits are positive
		return 0, cohort.Newf("tensorpipe: receive", cohort.Protocol,
			"a frame of %d bytes (%q) where %s of at most %d is expected", n, head, what, limit)
	}
	_, _ = s.br.Discard(frameHead)
	return int(n), nil //nolint:gosec // at most limit
}

// readFrame reads one frame of at most limit bytes into memory of its own.
func (s *stream) readFrame(limit int64, what string) ([]byte, error) {
	n, err := s.readHead(limit, what)
	if err != nil {
		return nil, err
	}
	// A frame is announced by its sender, so memory is allocated as the bytes arrive, not by what was announced.
	const step = 1 << 20
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		m := min(n-len(b), max(step, len(b)))
		if cap(b)-len(b) < m {
			grown := make([]byte, len(b), len(b)+m)
			copy(grown, b)
			b = grown
		}
		failpoint.At("tensorpipe.stream.read")
		if _, err := io.ReadFull(s.br, b[len(b):len(b)+m]); err != nil {
			return nil, err
		}
		b = b[:len(b)+m]
	}
	return b, nil
}

// readLength reads the length of a frame that must be want bytes long.
func (s *stream) readLength(want int, what string) error {
	n, err := s.readHead(int64(want), what)
	if err == nil && n != want {
		err = cohort.Newf("tensorpipe: receive", cohort.Protocol, "%s of %d bytes where %d were announced", what, n, want)
	}
	return err
}

// writeFrames writes small frames in one piece; used by the handshake, where a deadline is set on the connection.
func (s *stream) writeFrames(frames ...[]byte) error {
	var b []byte
	for _, f := range frames {
		b = appendFrame(b, f)
	}
	failpoint.At("tensorpipe.stream.greet")
	_, err := s.nc.Write(b)
	return err
}

func appendFrame(b, frame []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(frame))), frame...)
}

// step is a part of a message that goes to one connection.
type step struct {
	to   *stream
	bufs net.Buffers
}

// run writes the step. When ctx ends meanwhile, it stops and leaves in the step what was not written; a nil ctx never
// ends. A peer that reads nothing for the stall limit is an error.
func (st *step) run(ctx context.Context) error {
	for len(st.bufs) > 0 {
		now := time.Now()
		if now.Sub(st.to.set) > st.to.stall/4 || ctx == nil {
			st.to.set = now
			if err := st.to.nc.SetWriteDeadline(now.Add(st.to.stall)); err != nil {
				return err
			}
		}
		if ctx != nil && ctx.Err() != nil { // after the deadline was set: the end of ctx sets one in the past
			return ctx.Err()
		}
		failpoint.At("tensorpipe.stream.write")
		part := st.nextPart()
		n, err := st.to.write(part)
		st.consume(n)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) write(bufs net.Buffers) (int64, error) {
	if s.own != nil {
		return s.own.writeBuffers(bufs)
	}
	return bufs.WriteTo(s.nc)
}

// nextPart returns the first buffers, about writeChunk bytes of them.
func (st *step) nextPart() net.Buffers {
	var part net.Buffers
	total := 0
	for _, b := range st.bufs {
		if total+len(b) > writeChunk {
			if total == 0 {
				part = append(part, b[:writeChunk])
			}
			break
		}
		part = append(part, b)
		total += len(b)
	}
	return part
}

func (st *step) consume(n int64) {
	for n > 0 && len(st.bufs) > 0 {
		if first := int64(len(st.bufs[0])); first <= n {
			n -= first
			st.bufs = st.bufs[1:]
			continue
		}
		st.bufs[0] = st.bufs[0][n:]
		return
	}
	for len(st.bufs) > 0 && len(st.bufs[0]) == 0 {
		st.bufs = st.bufs[1:]
	}
}

// keepAlive lets the kernel probe the other machine of an idle connection every few seconds, so that
// [Pipe.Silence] can tell. It cuts a connection as late as it does by default: a worker that was cut off for a minute is
// still a worker.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 30}

// Silence returns for how long nothing has arrived from the other machine, not even an acknowledgement;
// a few seconds mean nothing. A process that hangs is not silent, since its machine acknowledges. Where the system does not
// report it, it is zero.
func (p *Pipe) Silence() time.Duration { return silence(p.main.nc) }

// PyTorch writes a request in six pieces. The runtime watches every connection with its poller thread, which each piece
// wakes; it wakes a goroutine, and that the monitor of the runtime. These threads compete with the one that is writing,
// and on a machine whose cores are busy, as they are where PyTorch workers poll their shared memory, a small call waits
// for them most of the time. So the connections that requests arrive on are not watched: while requests come one after
// the other, the receiver polls, that is, it waits for the next one in the kernel, in its own thread, for a moment
// and until enough has arrived. Only then it parks as usual.

const (
	// pollTime is how long a receiver polls. It occupies one of the GOMAXPROCS meanwhile, unless the runtime needs it, and
	// counts as one of the raw sleeps of [spinwait.BeginRawSleep].
	pollTime = time.Millisecond
	// pollCredit is the number of messages that may arrive later than that before the receiver stops polling.
	pollCredit = 4
	// minMessage is the size of the smallest message of PyTorch's without its tensors: 36 bytes of a descriptor, type and
	// id, a payload of no bytes, and an empty tensor table of 47. A smaller one is found when the poll has ended.
	minMessage = 36 + 12 + 16 + 8 + 55
)

// patient is a connection that is not watched.
type unpolledConn interface {
	net.Conn
	// expect announces that at least n further bytes will arrive: the reader need not be woken before.
	expect(n int)
	// writeBuffers is [net.Buffers.WriteTo].
	writeBuffers(bufs net.Buffers) (int64, error)
}

// adaptivePoll says whether the receiver of a pipe polls where it has to wait. It belongs to the receiver.
type adaptivePoll struct {
	began  time.Time
	credit int
	on     bool
}

// begin is called before the wait for a message. alone says that nothing else is under way on the pipe.
func (l *adaptivePoll) begin(alone bool) {
	l.began = time.Now()
	l.on = alone && l.credit > 0
}

// arrived is called when a message has begun to arrive. The rest of it is waited for in the same way.
func (l *adaptivePoll) arrived() {
	if time.Since(l.began) < pollTime {
		l.credit = pollCredit
	} else if l.credit > 0 {
		l.credit--
	}
}

// A pipe has connections that are not read for most of its life. The listening side makes a pipe only when all of them
// have arrived, and cannot know which pipe a connection was for that ended before its hello: see [Endpoint.unread]. So the
// dialling side watches all connections that it opened, and closes the pipe when one of them ends; the listening side watches
// the first one, whose end makes it stop waiting. Watching reads nothing: see [watch].

// endGrace is how long before the others one connection may end. A peer that closes a pipe closes
// all of them, and what it sent before that is still received.
const endGrace = 400 * time.Millisecond

// endLimit bounds how often that is renewed, because the end of the main connection is behind data that still arrives or was
// not read.
const endLimit = 30 * time.Second

// whenEnded calls fn when one of the connections ends. The returned function ends the watch; fn is not called afterwards.
func whenEnded(fn func(), all ...*stream) (stop func()) {
	w := newWatch(all...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := w.wait(time.Time{}); err == nil {
			fn()
		}
	}()
	return func() {
		w.close()
		failpoint.At("tensorpipe.watch.end")
		<-done
	}
}

// watchEnds ends the pipe when one of its connections has ended and the main one has not. The end of that one is found by
// the receiver, behind what was sent before it.
func (p *Pipe) watchEnds() {
	var deadline, limit time.Time
	var before uint64
	var waited bool // data was not read when the grace began: more may arrive when it is
	for {
		failpoint.At("tensorpipe.pipe.watch")
		ended, err := p.ends.wait(deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			came, unread := arrived(p.main.nc)
			if now := time.Now(); (unread || waited || came != before) && now.Before(limit) {
				before, waited, deadline = came, unread, now.Add(endGrace)
				continue
			}
			_ = p.broken("tensorpipe: pipe", errCut)
			return
		case err != nil || ended == p.main:
			return
		}
		if deadline.IsZero() {
			now := time.Now()
			deadline, limit = now.Add(endGrace), now.Add(endLimit)
			before, waited = arrived(p.main.nc)
		}
	}
}

var errCut = errors.New("a connection of the pipe was cut")
