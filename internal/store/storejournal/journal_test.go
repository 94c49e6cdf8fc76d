// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small keeps the files of tests small.
func small() storelog.Options {
	o := Options(storecore.Identity{})
	o.SegmentSize = 64 << 10
	return o
}

var config = storecore.Config{Limits: unlimited}

// fill makes a folder with a store of some keys, queues and claims.
func fill(t *testing.T, dir string) (hash uint64, id storecore.Identity) {
	t.Helper()
	j, m, err := Open(dir, config, small())
	if err != nil {
		t.Fatal(err)
	}
	c := m.Open("10.0.0.1:5", nil)
	m.Receive(c, wire.AppendUpgrade(wire.AppendValidate(nil)))
	for i, write := range []func([]byte) []byte{
		func(b []byte) []byte { return wire.AppendSet(b, wire.Native, "/k", []byte("value")) },
		func(b []byte) []byte { return wire.AppendAdd(b, wire.Native, "/n", 3) },
		func(b []byte) []byte { return wire.AppendKeyValue(b, wire.Native, wire.QueuePush, "/q", []byte("one")) },
		func(b []byte) []byte { return wire.AppendKeyValue(b, wire.Native, wire.QueuePush, "/q", []byte("two")) },
		func(b []byte) []byte {
			return wire.AppendCompareSet(b, wire.Native, wire.ClaimPrefix+"rank/0", nil, []byte("me"))
		},
	} {
		m.Receive(c, wire.EndFrame(write(wire.BeginFrame(nil, uint32(i))), 0, 0))
	}
	m.Close(c)
	for _, k := range m.Commands() {
		at, err := j.log.Write([]storelog.Record{{Kind: commandRecord, Data: k.Data}})
		if err != nil {
			t.Fatal(err)
		}
		m.Commit([]storecore.Entry{{Index: uint64(at), Data: k.Data, Local: k}})
	}
	if err := j.log.Close(); err != nil {
		t.Fatal(err)
	}
	return m.Hash(), m.Identity()
}

// state reads a folder.
func state(t *testing.T, dir string) (m *storecore.Machine) {
	t.Helper()
	j, m, err := Open(dir, config, small())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.log.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

// A folder that is opened again holds the same, under the same identity.
func TestOpenAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	hash, id := fill(t, dir)
	for range 2 {
		if m := state(t, dir); m.Hash() != hash || m.Identity() != id || m.Keys() != 3 {
			t.Errorf("hash %x, want %x; identity %x, want %x; %d keys", m.Hash(), hash, m.Identity(), id, m.Keys())
		}
	}
	if claims := state(t, dir).Claims(); claims["rank/0"] != (storecore.Claim{Text: "me"}) {
		t.Errorf("%+v", claims)
	}
}

// A backup makes a folder that holds the same, under an identity of its own unless it is to be the same.
func TestBackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	_, id := fill(t, filepath.Join(dir, "store"))
	var backup bytes.Buffer
	if n, keys, err := BackUp(filepath.Join(dir, "store"), &backup); err != nil || n != int64(backup.Len()) || keys != 3 {
		t.Fatal(n, keys, err)
	}
	for _, same := range []bool{false, true} {
		to := filepath.Join(dir, map[bool]string{false: "other", true: "same"}[same])
		got, err := Restore(to, bytes.NewReader(backup.Bytes()), same)
		if err != nil || got.Keys != 3 || (got.Identity == id) != same {
			t.Fatalf("same %v: %+v, %v", same, got, err)
		}
		m := state(t, to)
		if m.Identity() != got.Identity || m.Keys() != 3 || m.Claims()["rank/0"].Text != "me" {
			t.Errorf("same %v: identity %x, want %x; %d keys, %v", same, m.Identity(), got.Identity, m.Keys(), m.Claims())
		}
		if _, err := Restore(to, bytes.NewReader(backup.Bytes()), same); !errors.Is(err, cohort.AlreadyExists) {
			t.Errorf("into a folder with a store: %v", err)
		}
	}
	if _, _, err := BackUp(filepath.Join(dir, "none"), &backup); !errors.Is(err, cohort.NotFound) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// No byte of a backup can be changed or missing without being noticed, and what is left of the attempt is removed.
func TestDamagedBackup(t *testing.T) {
	dir := t.TempDir()
	fill(t, filepath.Join(dir, "store"))
	var backup bytes.Buffer
	if _, _, err := BackUp(filepath.Join(dir, "store"), &backup); err != nil {
		t.Fatal(err)
	}
	good := backup.Bytes()
	try := func(what string, at int, b []byte) {
		if got, err := Restore(filepath.Join(dir, "to"), bytes.NewReader(b), true); err == nil {
			t.Errorf("%s at %d is not noticed: %+v", what, at, got)
		}
	}
	for i := range good {
		changed := bytes.Clone(good)
		changed[i] ^= 4
		try("a change", i, changed)
		try("the end", i, good[:i])
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "to*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
