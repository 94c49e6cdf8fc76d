// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// A frame is u32 length of the payload | u8 type | payload.
const (
	framePing    = 0 // the connection is idle
	frameMessage = 1 // one of raft's
	frameChunk   = 2 // a part of a snapshot
	frameEnd     = 3 // the end of a snapshot: u32 crc32c of all of it
	frameResult  = 4 // of a snapshot: nothing, or why it was not taken
	frameRequest = 5
	frameAnswer  = 6

	headSize = 5
)

// maxFrame bounds a frame: a message has one entry at least, and an entry may hold the largest command of a store.
const maxFrame = 1 << 30

// stepSize is how much memory is taken for a frame before its bytes have come.
const stepSize = 1 << 20

func frameOf(typ byte, payload []byte) []byte {
	b := make([]byte, 0, headSize+len(payload))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload))) //nolint:gosec // bounded by maxFrame
	return append(append(b, typ), payload...)
}

// appendMessage appends a message as a frame.
func appendMessage(b []byte, m *raftpb.Message) ([]byte, error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0, frameMessage)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return b[:at], err
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-headSize)) //nolint:gosec // bounded by maxUncommitted
	return b, nil
}

// readFrame reads a frame. The payload is new memory.
func readFrame(r *bufio.Reader) (typ byte, payload []byte, err error) {
	var head [headSize]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes; the limit is %d", n, maxFrame)
	}
	for len(payload) < n {
		have := len(payload)
		payload = append(payload, make([]byte, min(n-have, max(stepSize, have)))...)
		if _, err = io.ReadFull(r, payload[have:]); err != nil {
			return 0, nil, err
		}
	}
	return head[4], payload, nil
}

// message reads a message that a member may send to this one.
func (l *Links) message(payload []byte, from uint64) (*raftpb.Message, error) {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(payload, m); err != nil {
		return nil, fmt.Errorf("a message that cannot be read: %w", err)
	}
	if m.GetFrom() != from || m.GetTo() != l.config.Self || !membercore.Acceptable(m) {
		return nil, fmt.Errorf("a message %v from %x to %x on a connection of %x", m.GetType(), m.GetFrom(), m.GetTo(), from)
	}
	return m, nil
}

// receive passes on the messages of a member until its connection ends.
func (l *Links) receive(c net.Conn, from uint64) error {
	r := bufio.NewReaderSize(c, 64<<10)
	for {
		if err := c.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
			return err
		}
		typ, payload, err := readFrame(r)
		if err != nil {
			return err
		}
		if l.config.Handler.Gone(from) {
			return errRemoved // it learns that when it connects again
		}
		switch typ {
		case framePing:
		case frameMessage:
			m, err := l.message(payload, from)
			if err != nil {
				return err
			}
			if m.GetType() == raftpb.MsgSnap {
				return errors.New("a snapshot on a connection for messages")
			}
			l.config.Handler.Message(l.ctx, m)
		default:
			return fmt.Errorf("a frame of type %d, which this version does not know", typ)
		}
	}
}
