// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// TestLimitsPage compares the table of limits in docs/stores.md with the defaults.
func TestLimitsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z][a-z]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(page), -1) {
		table[row[1]] = row[2]
	}
	defaults := reflect.ValueOf(DefaultLimits())
	for i := range defaults.NumField() {
		name := defaults.Type().Field(i).Name
		var want string
		switch v := defaults.Field(i).Interface().(type) {
		case time.Duration:
			want = v.String()
		default:
			n := defaults.Field(i).Int()
			switch {
			case name == "Conns" || name == "Keys" || name == "Waits":
				want = strconv.FormatInt(n, 10)
			case n >= 1<<30:
				want = fmt.Sprintf("%d GiB", n>>30)
			case n >= 1<<20:
				want = fmt.Sprintf("%d MiB", n>>20)
			default:
				want = fmt.Sprintf("%d KiB", n>>10)
			}
		}
		if table[name] != want {
			t.Errorf("%s is %s, the page says %q", name, want, table[name])
		}
	}
	if len(table) != defaults.NumField() {
		t.Errorf("the page has %d limits, there are %d", len(table), defaults.NumField())
	}
}
