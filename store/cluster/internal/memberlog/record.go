// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlog

import (
	"encoding/binary"
	"errors"
	"io"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Kinds of records. A later version may add kinds, and writes them only when all members know them.
const (
	KindEntry = 1
	KindHard  = 2
)

// headerFormat is the first byte of a snapshot, maxHeader the most that its header may take: the members are few.
const (
	headerFormat = 1
	maxHeader    = 1 << 20
)

var (
	errRecord = errors.New("it is malformed")
	errHeader = errors.New("the snapshot's header is malformed, or of a newer version of this program")
)

// An entry is written as its term, its index, its type and its data, not as raft's own message, which may change with raft's version.
func encodeEntry(e *raftpb.Entry) []byte {
	b := make([]byte, 0, 2*binary.MaxVarintLen64+1+len(e.GetData()))
	b = binary.AppendUvarint(b, e.GetTerm())
	b = binary.AppendUvarint(b, e.GetIndex())
	b = append(b, byte(e.GetType())) //nolint:gosec // there are three
	return append(b, e.GetData()...)
}

// decodeEntry copies the data.
func decodeEntry(b []byte) (*raftpb.Entry, error) {
	var numbers [2]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errRecord
		}
		numbers[i], b = v, b[n:]
	}
	if len(b) == 0 || b[0] > byte(raftpb.EntryConfChangeV2) {
		return nil, errRecord
	}
	e := &raftpb.Entry{Term: new(numbers[0]), Index: new(numbers[1]), Type: raftpb.EntryType(b[0]).Enum()}
	if len(b) > 1 {
		e.Data = append([]byte(nil), b[1:]...)
	}
	return e, nil
}

func encodeHard(h *raftpb.HardState) []byte {
	b := binary.AppendUvarint(nil, h.GetTerm())
	b = binary.AppendUvarint(b, h.GetVote())
	return binary.AppendUvarint(b, h.GetCommit())
}

func decodeHard(b []byte) (*raftpb.HardState, error) {
	var numbers [3]uint64
	for i := range numbers {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errRecord
		}
		numbers[i], b = v, b[n:]
	}
	if len(b) > 0 {
		return nil, errRecord
	}
	return &raftpb.HardState{Term: new(numbers[0]), Vote: new(numbers[1]), Commit: new(numbers[2])}, nil
}

// writeHeader writes the format, two lengths, raft's description of the snapshot, and the hard state.
func writeHeader(w io.Writer, snap *raftpb.Snapshot, hard *raftpb.HardState) error {
	described, err := proto.Marshal(snap)
	if err != nil {
		return err
	}
	state := encodeHard(hard)
	b := []byte{headerFormat}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(described))) //nolint:gosec // small
	b = binary.LittleEndian.AppendUint32(b, uint32(len(state)))     //nolint:gosec // small
	b = append(append(b, described...), state...)
	_, err = w.Write(b)
	return err
}

func readHeader(r io.Reader) (*raftpb.Snapshot, *raftpb.HardState, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, nil, err
	}
	described, state := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	if head[0] != headerFormat || described > maxHeader || state > maxHeader {
		return nil, nil, errHeader
	}
	b := make([]byte, described+state)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, nil, err
	}
	snap := &raftpb.Snapshot{}
	if err := proto.Unmarshal(b[:described], snap); err != nil {
		return nil, nil, errHeader
	}
	hard, err := decodeHard(b[described:])
	if err != nil {
		return nil, nil, errHeader
	}
	return snap, hard, nil
}
