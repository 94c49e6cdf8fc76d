// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The names that PyTorch gives to its records.
const (
	userPrefix   = "/"
	deletePrefix = "-"
	refCountKey  = "refcount/"
	cleanupKey   = "cleanup/"
)

// Why a log cannot be read to its end.
var (
	errTorn    = errors.New("the last record is unfinished: the file was truncated, or a writer died in the middle of it")
	errForeign = errors.New("this is not a file store: no valid record")
)

// appendRecord appends a record to dst. The lengths were checked against the limits.
func appendRecord(dst []byte, key string, value []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(key))) //nolint:gosec // checked
	dst = append(dst, key...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value))) //nolint:gosec // checked
	return append(dst, value...)
}

// limits bounds what is taken into memory for one record.
type limits struct{ key, value int64 }

// table is the replayed state of a log.
type table struct {
	values map[string][]byte // by the key of the record, prefix included
	pos    int64             // where the records that are in values end
	end    []byte            // the last bytes before pos
}

func newTable() table { return table{values: map[string][]byte{}} }

// apply takes a record into the state. The value is kept.
func (t *table) apply(key string, value []byte) {
	if rest, deleted := strings.CutPrefix(key, deletePrefix); deleted {
		delete(t.values, rest)
		return
	}
	t.values[key] = value
}

// replay applies the records between t.pos and size. r starts at t.pos. When it fails, t.pos is the end of the last
// good record and the error says what follows there: errTorn only if that could be the beginning of a record.
func (t *table) replay(r io.Reader, size int64, limit limits) error {
	in := bufio.NewReaderSize(io.LimitReader(r, size-t.pos), 64<<10)
	for t.pos < size {
		left := size - t.pos
		key, err := readPart(in, &left, limit.key)
		if err == nil && !validKey(string(key)) {
			err = fmt.Errorf("%w: the key %.40q is none of PyTorch's", errForeign, key)
		}
		var value []byte
		if err == nil {
			value, err = readPart(in, &left, limit.value)
		}
		if err != nil {
			return err
		}
		t.apply(string(key), value)
		t.pos = size - left
	}
	return nil
}

// readPart reads a length and that many bytes, of which at most *left exist.
func readPart(r io.Reader, left *int64, limit int64) ([]byte, error) {
	var head [4]byte
	if *left < int64(len(head)) {
		return nil, errTorn
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	*left -= int64(len(head))
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n > limit {
		return nil, fmt.Errorf("%w: a length of %d bytes is over the limit of %d", errForeign, n, limit)
	}
	if n > *left {
		return nil, errTorn
	}
	part := make([]byte, n)
	if _, err := io.ReadFull(r, part); err != nil {
		return nil, err
	}
	*left -= n
	return part, nil
}

// validKey reports whether PyTorch could have written key: "/k", "-/k", or bookkeeping, which ends with a slash.
func validKey(key string) bool {
	return strings.HasPrefix(key, userPrefix) || strings.HasPrefix(key, deletePrefix) || strings.HasSuffix(key, "/")
}
