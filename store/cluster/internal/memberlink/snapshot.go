// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

const (
	chunkSize = 256 << 10
	// chunkTimeout is how long a chunk of a snapshot may take, resultTimeout how long the receiver may take to store it.
	chunkTimeout, resultTimeout = 15 * time.Second, 5 * time.Minute
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SendSnapshot sends a message and the replicated state that belongs to it, and returns when the other member has it.
func (l *Links) SendSnapshot(m *raftpb.Message, state io.Reader) error {
	addr, ok := l.addr(m.GetTo())
	if !ok {
		return fmt.Errorf("member %x is not known", m.GetTo())
	}
	c, err := l.dial(l.ctx, addr, hello{Kind: kindSnapshot, To: m.GetTo()})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	watch := ctxdial.InterruptBy(l.ctx, c.SetDeadline)
	defer watch.End()
	first, err := appendMessage(nil, m)
	if err != nil {
		return err
	}
	if _, err = c.Write(first); err != nil {
		return err
	}
	if err = l.sendState(c, state); err != nil {
		return err
	}
	return result(c)
}

// sendState sends chunks, not faster than the rate.
func (l *Links) sendState(c net.Conn, state io.Reader) error {
	chunk := make([]byte, chunkSize)
	sum, sent, begun := uint32(0), int64(0), time.Now()
	for {
		n, err := io.ReadFull(state, chunk)
		if n > 0 {
			sum = crc32.Update(sum, castagnoli, chunk[:n])
			if werr := writeWithin(c, chunkTimeout, frameOf(frameChunk, chunk[:n])); werr != nil {
				return werr
			}
			sent += int64(n)
			l.pause(time.Until(begun.Add(time.Duration(float64(sent) / float64(l.config.SnapshotRate) * float64(time.Second)))))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return writeWithin(c, chunkTimeout, frameOf(frameEnd, binary.LittleEndian.AppendUint32(nil, sum)))
		}
		if err != nil {
			return err
		}
	}
}

func writeWithin(c net.Conn, d time.Duration, b []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// result reads what became of a snapshot.
func result(c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(resultTimeout)); err != nil {
		return err
	}
	typ, payload, err := readFrame(bufio.NewReader(c))
	switch {
	case err != nil:
		return err
	case typ != frameResult:
		return fmt.Errorf("a frame of type %d in place of a result", typ)
	case len(payload) > 0:
		return fmt.Errorf("the other member: %s", printable.Line(string(payload[:min(len(payload), maxGreeting)])))
	}
	return nil
}

// receiveSnapshot takes one snapshot at a time.
func (l *Links) receiveSnapshot(c net.Conn, from uint64) error {
	err := l.takeSnapshot(c, from)
	text := ""
	if err != nil {
		text = err.Error()
	}
	return errors.Join(err, writeWithin(c, chunkTimeout, frameOf(frameResult, []byte(text))))
}

func (l *Links) takeSnapshot(c net.Conn, from uint64) error {
	l.mu.Lock()
	busy := l.receiving
	l.receiving = true
	l.mu.Unlock()
	if busy {
		return errors.New("another snapshot is being received")
	}
	defer func() {
		l.mu.Lock()
		l.receiving = false
		l.mu.Unlock()
	}()
	s := &stateReader{c: c, r: bufio.NewReaderSize(c, 64<<10), left: l.config.SnapshotSize}
	typ, payload, err := s.frame()
	if err != nil {
		return err
	}
	m, err := l.message(payload, from)
	if err != nil {
		return err
	}
	if typ != frameMessage || m.GetType() != raftpb.MsgSnap {
		return fmt.Errorf("a message %v on a connection for a snapshot", m.GetType())
	}
	return l.config.Handler.Snapshot(l.ctx, m, s)
}

// stateReader reads the state of a snapshot from frames.
type stateReader struct {
	c     net.Conn
	r     *bufio.Reader
	chunk []byte
	sum   uint32
	left  int64
	ended bool
}

func (s *stateReader) frame() (byte, []byte, error) {
	if err := s.c.SetReadDeadline(time.Now().Add(chunkTimeout)); err != nil {
		return 0, nil, err
	}
	return readFrame(s.r)
}

// Read returns io.EOF only when the end has come and the checksum is right.
func (s *stateReader) Read(b []byte) (int, error) {
	for len(s.chunk) == 0 {
		if s.ended {
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.chunk)
	s.chunk = s.chunk[n:]
	return n, nil
}

func (s *stateReader) next() error {
	typ, payload, err := s.frame()
	if err != nil {
		return noEOF(err)
	}
	switch typ {
	case frameChunk:
		if s.left -= int64(len(payload)); s.left < 0 {
			return errors.New("the snapshot is larger than this member takes")
		}
		s.sum = crc32.Update(s.sum, castagnoli, payload)
		s.chunk = payload
	case frameEnd:
		if len(payload) != 4 || binary.LittleEndian.Uint32(payload) != s.sum {
			return errors.New("the snapshot was changed on its way")
		}
		s.ended = true
	default:
		return fmt.Errorf("a frame of type %d in a snapshot", typ)
	}
	return nil
}

// noEOF: a connection that ends in the middle of something is not the end of that.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// endOf is why a connection on which the other side says nothing has ended.
func endOf(err error) error {
	if err == nil {
		return errors.New("the other member has sent something where it should not")
	}
	return err
}

// answer answers the one request of a connection.
func (l *Links) answer(c net.Conn) error {
	ctx, stop := context.WithTimeout(l.ctx, requestTimeout)
	defer stop()
	if err := c.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	typ, payload, err := readFrame(bufio.NewReader(io.LimitReader(c, maxRequest)))
	if err != nil {
		return err
	}
	if typ != frameRequest {
		return fmt.Errorf("a frame of type %d in place of a request", typ)
	}
	_, err = c.Write(frameOf(frameAnswer, l.config.Handler.Request(ctx, payload)))
	return err
}

// requestTimeout bounds a request, maxRequest its size and that of its answer.
const requestTimeout, maxRequest = 30 * time.Second, 1 << 20
