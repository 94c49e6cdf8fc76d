// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"bytes"
	"errors"
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/faultdisk"
)

var everyBit = flag.Bool("storelog.everybit", false, "change each bit of each byte of a log, not one of each byte that matters")

// outcome opens a damaged log. It holds everything, or the error names the file.
func outcome(d *faultdisk.Disk, name string, want state) (found bool, err error) {
	s, err := recovered(d)
	damage, isDamage := errors.AsType[*storelog.CorruptError](err)
	switch {
	case err == nil && s == want:
		return false, nil
	case err == nil:
		return false, errors.New("records are lost without a word")
	case isDamage && damage.File == name && strings.Contains(err.Error(), name):
		return true, nil
	case isDamage && strings.HasSuffix(damage.Reason, filepath.Base(name)+", which is missing"):
		return true, nil
	default:
		return false, err
	}
}

// TestEveryByteChanged: a changed byte anywhere is found and named, or nothing is lost by it. By the kind of file: what may be
// harmless is the reserve, a segment that the snapshot covers, and what follows the last record.
func TestEveryByteChanged(t *testing.T) {
	t.Parallel()
	d, want := filled(t)
	newest := newestSegment(d)
	for _, variant := range []struct {
		name string
		disk *faultdisk.Disk
	}{
		{"closed", d},
		{"last mark not on the disk", withoutLastMark(d, newest)},
	} {
		for _, path := range variant.disk.Names() {
			name, b := filepath.Base(path), variant.disk.Bytes(path)
			harmless := 0
			for i := range b {
				if !worth(path, b, i) || variant.disk != d && path != newest {
					continue
				}
				for _, changed := range changes(b[i], i) {
					content := bytes.Clone(b)
					content[i] = changed
					found, err := outcome(variant.disk.With(path, content), name, want)
					if err != nil {
						t.Fatalf("%s: %s, byte %d of %d from %#x to %#x: %v", variant.name, name, i, len(b), b[i], changed, err)
					}
					if !found {
						harmless++
					}
				}
			}
			if used := len(bytes.TrimRight(b, "\x00")); harmless > 0 && name != "reserve" && path != newest &&
				name != "00000000000000000001.log" && harmless > (len(b)-used+32)*8 {
				t.Errorf("%s: %s: %d changes are not noticed", variant.name, name, harmless)
			}
		}
	}
}

// worth leaves out most bytes that are all alike: zeros, and what is not read.
func worth(path string, b []byte, i int) bool {
	used := len(bytes.TrimRight(b, "\x00"))
	same := i > used+64 || strings.HasSuffix(path, "reserve") || strings.HasSuffix(path, "0001.log")
	return *everyBit || !same || i%61 == 0
}

// changes returns values for a byte: with one bit changed, which is another one for each byte, or all such.
func changes(b byte, i int) (changed []byte) {
	if !*everyBit {
		return []byte{b ^ 1<<(i%8)}
	}
	for bit := range 8 {
		changed = append(changed, b^1<<bit)
	}
	return append(changed, b^0xff)
}

func newestSegment(d *faultdisk.Disk) (newest string) {
	for _, path := range d.Names() {
		if strings.HasSuffix(path, ".log") {
			newest = path
		}
	}
	return newest
}

// withoutLastMark is the disk after the power was lost before the last mark was written.
func withoutLastMark(d *faultdisk.Disk, newest string) *faultdisk.Disk {
	b := bytes.Clone(d.Bytes(newest))
	at := bytes.LastIndex(b, []byte("mark"))
	clear(b[at:])
	return d.With(newest, b)
}

// TestTruncatedAnywhere: a file that is shorter than it was made is named, however short it is.
func TestTruncatedAnywhere(t *testing.T) {
	t.Parallel()
	d, want := filled(t)
	for _, path := range d.Names() {
		name, b := filepath.Base(path), d.Bytes(path)
		for n := range b {
			if !worth(path, b, n) {
				continue
			}
			found, err := outcome(d.With(path, b[:n:n]), name, want)
			if err != nil || !found && name != "reserve" && name != "00000000000000000001.log" {
				t.Fatalf("%s cut to %d of %d bytes: found: %v, %v", name, n, len(b), found, err)
			}
		}
		if found, err := outcome(d.With(path, append(bytes.Clone(b), 0)), name, want); err != nil ||
			!found && name != "reserve" && name != "00000000000000000001.log" {
			t.Errorf("%s with a byte more: found: %v, %v", name, found, err)
		}
	}
}

// TestMissingFile: the loss of a file that is needed is noticed.
func TestMissingFile(t *testing.T) {
	t.Parallel()
	whole, want := filled(t)
	compact := whole.Killed()
	s := state{}
	l, err := storelog.Open(dir, options(compact), replay(&s))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Compact(l.Stats().Snapshot), l.Close()); err != nil {
		t.Fatal(err)
	}
	if compact.Bytes(filepath.Join(dir, "00000000000000000001.log")) != nil {
		t.Fatalf("%v before, %v after", whole.Names(), compact.Names())
	}
	for _, path := range compact.Names() {
		_, err := recovered(compact.With(path, nil))
		_, damaged := errors.AsType[*storelog.CorruptError](err)
		if needed := !strings.HasSuffix(path, "reserve"); damaged != needed || !needed && err != nil {
			t.Errorf("without %s: %v", path, err)
		}
	}
	// As long as all records are there, they are as good as the snapshot.
	for _, path := range whole.Names() {
		if s, err := recovered(whole.With(path, nil)); err == nil && s != want {
			t.Errorf("without %s: %v, want %v", path, s, want)
		}
	}
}

// TestTornTail: the rest of a batch that no sync has covered is removed, and the log goes on.
func TestTornTail(t *testing.T) {
	t.Parallel()
	d, want := filled(t)
	newest := newestSegment(d)
	end := len(bytes.TrimRight(d.Bytes(newest), "\x00"))
	end += (8 - end%8) % 8
	for sectors := range 3 {
		b := bytes.Clone(d.Bytes(newest))
		at := (end/512 + 1 + sectors) * 512
		if at+512 > len(b) {
			break
		}
		copy(b[at:], bytes.Repeat([]byte{7}, 512))
		torn := d.With(newest, b)
		s := state{}
		l, err := storelog.Open(dir, options(torn), replay(&s))
		if err != nil || s != want || l.Stats().Cut == 0 {
			t.Fatalf("%v, %v", s, err)
		}
		if _, err := l.Write([]storelog.Record{{Kind: ordinary}}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err := recovered(torn); err != nil || s.last != want.last+1 {
			t.Errorf("%v, %v", s, err)
		}
	}
}

// TestNewerFormat is refused with a sentence; it is not damage.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	d, _ := filled(t)
	for _, path := range d.Names() {
		if name := filepath.Base(path); name == "reserve" || name == "00000000000000000001.log" {
			continue
		}
		_, err := recovered(d.With(path, storelog.WithFormat(d.Bytes(path), 2)))
		_, damaged := errors.AsType[*storelog.CorruptError](err)
		if damaged || !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestMixedFolders: a file of another store is not taken for one of this.
func TestMixedFolders(t *testing.T) {
	t.Parallel()
	d, _ := filled(t)
	other := &faultdisk.Disk{}
	o := options(other)
	o.Identity = storelog.ID{1}
	l, err := storelog.Open(dir, o, storelog.Replay{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	identity := filepath.Join(dir, "identity")
	if _, err := recovered(d.With(identity, other.Bytes(identity))); err == nil || !strings.Contains(err.Error(), "of another store") {
		t.Error(err)
	}
}

// TestMarkProtects: a changed record with long runs of zeros looks like one that was written in part. The mark behind it proves
// that it was not.
func TestMarkProtects(t *testing.T) {
	t.Parallel()
	d, u := &faultdisk.Disk{}, newUser(1)
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	if err := u.write([]storelog.Record{{Kind: ordinary, Data: make([]byte, 2500)}}); err != nil {
		t.Fatal(err)
	}
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	path := newestSegment(d)
	for at := 192; at < 2600; at += 13 { // the header, a mark and the head of the batch are before
		b := bytes.Clone(d.Bytes(path))
		b[at] ^= 1
		if found, err := outcome(d.With(path, b), filepath.Base(path), u.acked); !found || err != nil {
			t.Errorf("byte %d: found: %v, %v", at, found, err)
		}
	}
}
