// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// pytorchCases is PyTorch's own StoreTestBase, and the delete test that only its TCP store has.
var pytorchCases = []testCase{
	{"SetGetCheck", func(s *suite) {
		st := s.store()
		for sum, n := int64(0), int64(1); n <= 3; n++ {
			sum += n
			s.wantAdd(st, "key", n, sum)
		}
		s.set(st, "key0", "value0")
		s.wantAdd(st, "key3", 1, 1)
		s.set(st, "key1", "value1")
		s.wantAdd(st, "key3", 2, 3)
		s.set(st, "key2", "value2")
		for sum, n := int64(3), int64(3); n <= 6; n++ {
			sum += n
			s.wantAdd(st, "key3", n, sum)
		}
		s.wantKeys(st, 5)
		s.wantGet(st, "key", "6")
		s.wantGet(st, "key0", "value0")
		s.wantGet(st, "key1", "value1")
		s.wantGet(st, "key2", "value2")
		s.wantGet(st, "key3", "21")
		s.wantCheck(st, true, "key3")
		s.wantCheck(st, false, "Randomkey3")
		s.set(st, "-key3", "7")
		s.wantGet(st, "-key3", "7")
		s.wantDelete(st, "-key3", true)
		s.wantKeys(st, 5)
	}},
	{"CompareSet", func(s *suite) {
		st := s.store()
		s.wantCAS(st, "cs_key0", "wrong_old_value", "new_value0", "wrong_old_value")
		s.wantCheck(st, false, "cs_key0")
		s.set(st, "cs_key0", "value0")
		s.wantGet(st, "cs_key0", "value0")
		s.wantCAS(st, "cs_key0", "wrong_old_value", "new_value0", "value0")
		s.wantGet(st, "cs_key0", "value0")
		s.wantCAS(st, "cs_key0", "value0", "new_value0", "new_value0")
		s.wantGet(st, "cs_key0", "new_value0")
		s.wantCAS(st, "cs_key1", "", "new_value1", "new_value1")
		s.wantGet(st, "cs_key1", "new_value1")
		// An existing empty value equals an empty expected one, and a full one does not.
		s.set(st, "empty", "")
		s.wantCAS(st, "empty", "", "full", "full")
		s.wantCAS(st, "empty", "", "other", "full")
		s.wantCAS(st, "empty", "full", "", "")
		s.wantGet(st, "empty", "")
	}},
	{"SimpleWait", func(s *suite) {
		st := s.store()
		ctx, cancel := context.WithTimeout(s.ctx, 4*brief)
		defer cancel()
		err := st.Wait(ctx, "bad_key")
		s.wantTimeout(err)
		if !strings.Contains(err.Error(), "timeout") || !strings.Contains(err.Error(), "bad_key") {
			s.Fatalf("the error does not name the timeout and the key: %v", err)
		}
		s.wantAdd(st, "good_key", 1, 1)
		s.must(st.Wait(s.ctx, "good_key"))
	}},
	{"Append", func(s *suite) {
		st := s.store()
		s.set(st, "foo", "po")
		s.must(store.Append(s.ctx, st, "foo", []byte("tato")))
		s.must(store.Append(s.ctx, st, "bar", []byte("po")))
		s.must(store.Append(s.ctx, st, "bar", []byte("tato")))
		s.wantGet(st, "foo", "potato")
		s.wantGet(st, "bar", "potato")
	}},
	{"MultiSet", func(s *suite) {
		st := s.store()
		s.must(store.MultiSet(s.ctx, st, []string{"foo", "bar"}, [][]byte{[]byte("po"), []byte("tato")}))
		s.wantGet(st, "foo", "po")
		s.wantGet(st, "bar", "tato")
	}},
	{"MultiGet", func(s *suite) {
		st := s.store()
		s.set(st, "foo", "po")
		s.set(st, "bar", "tato")
		got, err := store.MultiGet(s.ctx, st, "foo", "bar")
		s.must(err)
		if want := [][]byte{[]byte("po"), []byte("tato")}; len(got) != 2 || !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) {
			s.Fatalf("got %q, want %q", got, want)
		}
	}},
	{"NumKeysDelete", func(s *suite) {
		st := s.store()
		s.wantKeys(st, 0)
		for sum, n := int64(0), int64(1); n <= 3; n++ {
			sum += n
			s.wantAdd(st, "key", n, sum)
		}
		s.set(st, "key0", "value0")
		s.wantAdd(st, "key3", 1, 1)
		s.set(st, "key1", "value1")
		s.wantKeys(st, 4)
		s.wantDelete(st, "key", true)
		s.wantKeys(st, 3)
		st.SetTimeout(brief)
		if _, err := st.Get(context.Background(), "key"); err == nil {
			s.Fatal("a deleted key could be read")
		}
		st.SetTimeout(store.DefaultTimeout)
		s.wantDelete(st, "key0", true)
		s.wantDelete(st, "key3", true)
		s.wantDelete(st, "key3", false)
		s.wantDelete(st, "never", false)
		s.wantKeys(st, 1)
		s.set(st, "key4", "value2")
		s.wantKeys(st, 2)
		s.wantGet(st, "key1", "value1")
		s.wantGet(st, "key4", "value2")
	}},
}

var valueCases = []testCase{
	{"Keys", func(s *suite) {
		st := s.store()
		keys := []string{
			"", "/", "//", "a", "a/b", "/a", "-a", "-", "-/a", " ", "a b", "line\nbreak", "nul\x00byte", "äöü", "\xff\xfe",
			"init/", "refcount/", "cleanup/", "k%d", strings.Repeat("long/", 400),
		}
		for i, key := range keys {
			s.wantCheck(st, false, key)
			s.set(st, key, fmt.Sprint("value of ", i))
		}
		s.wantKeys(st, len(keys))
		for i, key := range keys {
			s.wantGet(st, key, fmt.Sprint("value of ", i))
		}
		s.wantCheck(st, true, keys...)
		s.must(st.Wait(s.ctx, keys...))
		for i, key := range keys {
			s.wantDelete(st, key, true)
			s.wantCheck(st, false, key)
			s.wantKeys(st, len(keys)-i-1)
		}
	}},
	{"Values", func(s *suite) {
		st := s.store()
		large := bytes.Repeat([]byte("0123456789abcdef"), (s.largeValue+15)/16)[:s.largeValue]
		for i, value := range []string{
			"", "\x00", "a\x00b", "\xff\xfe\x80", "line\nbreak\r\n", string(large[:1439]),
			string(large[:1440]), string(large),
		} {
			key := fmt.Sprint("key", i)
			s.set(st, key, value)
			s.wantCheck(st, true, key)
			s.wantGet(st, key, value)
			s.set(st, "same", value)
			s.wantGet(st, "same", value)
		}
	}},
	{"BytesBelongToCaller", func(s *suite) {
		st := s.store()
		value := []byte("value")
		s.must(st.Set(s.ctx, "set", value))
		_, err := st.CompareAndSet(s.ctx, "cas", nil, value)
		s.must(err)
		s.must(store.Append(s.ctx, st, "append", value))
		s.must(store.MultiSet(s.ctx, st, []string{"multi"}, [][]byte{value}))
		copy(value, "XXXXX")
		for _, key := range []string{"set", "cas", "append", "multi"} {
			got, err := st.Get(s.ctx, key)
			s.must(err)
			if string(got) != "value" {
				s.Fatalf("%s kept the caller's bytes: %q", key, got)
			}
			copy(got, "YYYYY")
			_ = append(got[:0], "ZZZZZZZZ"...)
			s.wantGet(st, key, "value")
		}
	}},
	{"CheckAndWaitNothing", func(s *suite) {
		st := s.store()
		s.wantCheck(st, true)
		s.must(st.Wait(s.ctx))
	}},
	{"Timeout", func(s *suite) {
		st := s.store()
		st.SetTimeout(17 * time.Second)
		if got := st.Timeout(); got != 17*time.Second {
			s.Fatalf("timeout %v, want 17s", got)
		}
	}},
}

var numberCases = []testCase{
	{"Numbers", func(s *suite) {
		st := s.store()
		s.wantAdd(st, "n", 0, 0)
		s.wantGet(st, "n", "0")
		s.wantAdd(st, "n", -5, -5)
		s.wantGet(st, "n", "-5")
		s.wantAdd(st, "n", math.MaxInt64, math.MaxInt64-5)
		s.wantAdd(st, "n", 6, math.MinInt64)
		s.wantGet(st, "n", "-9223372036854775808")
		s.wantAdd(st, "min", math.MinInt64, math.MinInt64)
		s.wantAdd(st, "min", -1, math.MaxInt64)
		s.set(st, "text", "  12abc")
		s.wantAdd(st, "text", 1, 13)
		s.wantGet(st, "text", "13")
		s.set(st, "plus", "+7")
		s.wantAdd(st, "plus", 0, 7)
		s.wantGet(st, "plus", "7")
	}},
	{"NotANumber", func(s *suite) {
		st := s.store()
		for _, value := range []string{"abc", "-", " ", "9223372036854775808", "x1"} {
			s.set(st, "text", value)
			_, err := st.Add(s.ctx, "text", 1)
			if !errors.Is(err, store.ErrNotANumber) {
				s.Fatalf("add to %q: %v; want store.ErrNotANumber", value, err)
			}
			s.wantGet(st, "text", value) // untouched, and the store works
		}
	}},
	{"EmptyNumber", func(s *suite) {
		st := s.store()
		s.set(st, "empty", "")
		if !s.emptyIsNoNumber {
			s.wantAdd(st, "empty", 4, 4)
			return
		}
		if _, err := st.Add(s.ctx, "empty", 1); !errors.Is(err, store.ErrNotANumber) {
			s.Fatalf("add to an empty value: %v; want store.ErrNotANumber", err)
		}
		s.wantGet(st, "empty", "")
	}},
}
