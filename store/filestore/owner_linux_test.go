// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestFileOfAnotherUser: a file or a link that another user has put where the store is to be is refused; the same in a folder to which only
// this user may write is used, and so is one of a user who is allowed.
func TestFileOfAnotherUser(t *testing.T) {
	testkit.NeedOtherUser(t)
	const other = testkit.OtherUser
	for name, c := range map[string]struct {
		mode    os.FileMode // of the folder
		prepare func(path string) error
		allow   string
		want    string // "": no error
	}{
		"own file":              {0o1777, func(path string) error { return os.WriteFile(path, nil, 0o600) }, "", ""},
		"no file":               {0o1777, func(string) error { return nil }, "", ""},
		"file":                  {0o1777, func(path string) error { return give(path, other) }, "", "it belongs to user 65534"},
		"file in a group's":     {0o770, func(path string) error { return give(path, other) }, "", "it belongs to user 65534"},
		"file, allowed":         {0o1777, func(path string) error { return give(path, other) }, "65534", ""},
		"file in a private one": {0o755, func(path string) error { return give(path, other) }, "", ""},
		"link":                  {0o777, func(path string) error { return link(path, other) }, "", "it is a link that belongs"},
		"link in a private one": {0o755, func(path string) error { return link(path, other) }, "", ""},
		"own link to such a file": {
			0o755, func(path string) error { return linkAway(path, other) }, "", "it belongs to user 65534",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(peeruid.Env, c.allow)
			path := filepath.Join(t.TempDir(), "store")
			if err := c.prepare(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(filepath.Dir(path), c.mode); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), path)
			if err == nil {
				err = s.Set(t.Context(), "k", []byte("v"))
				defer func() { _ = s.Close() }()
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func give(path string, uid int) error {
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return err
	}
	return os.Chown(path, uid, uid)
}

// link makes a link of another user to a file of this user.
func link(path string, uid int) error {
	if err := os.WriteFile(path+"-target", nil, 0o600); err != nil {
		return err
	}
	if err := os.Symlink(path+"-target", path); err != nil {
		return err
	}
	return os.Lchown(path, uid, uid)
}

// linkAway makes a link of this user to a file of another one, in a folder of that one.
func linkAway(path string, uid int) error {
	folder := path + "-folder"
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	if err := give(filepath.Join(folder, "file"), uid); err != nil {
		return err
	}
	if err := os.Chown(folder, uid, uid); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(folder, "file"), path)
}
