// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"strings"
	"testing"
)

var sources = map[string][]byte{"a.go": []byte(`package a

func (m *Machine[G]) grace() int {
	x := m.x
	return x
}

func other() {
	x := 1
	x = 1
	x = 1
}
`)}

const table = `# a comment
mutant NoGrace: it ends at once
found by TestSimulation -seeds 5
in Machine.grace
-	x := m.x
+	x := m.x
+	if mutants.NoGrace {
+		return 0
+	}

mutant Twice: it is twice as much
in Machine.grace
-	return x
+	if mutants.Twice {
+		x *= 2
+	}
+	return x
`

// TestTable: a table is read, and its changes are made where they belong.
func TestTable(t *testing.T) {
	all, err := parseTable(table)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].name != "NoGrace" || all[0].what != "it ends at once" || len(all[0].finders) != 1 ||
		strings.Join(all[0].finders[0], " ") != "TestSimulation -seeds 5" || all[1].finders != nil {
		t.Errorf("the table is %+v", all)
	}
	changed, err := apply(sources, all)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer(
		"\tx := m.x\n", "\tx := m.x\n\tif mutants.NoGrace {\n\t\treturn 0\n\t}\n",
		"\treturn x\n", "\tif mutants.Twice {\n\t\tx *= 2\n\t}\n\treturn x\n",
	).Replace(string(sources["a.go"]))
	if got := string(changed["a.go"]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := places(map[string][]byte{"switches.go": switches("a", all)}); err != nil {
		t.Error(err)
	}
}

// TestTableErrors: a table that does not fit the source any more is refused.
func TestTableErrors(t *testing.T) {
	for _, c := range []struct{ name, table, want string }{
		{"nothing", "# nothing", "it has no mutants"},
		{"no mutant before a change", "in other", "before the first mutant"},
		{"an unknown line", "mutant A: a\nat other", "is not part of a mutant"},
		{"a mutant without effect", "mutant A: a\nin other\n-x := 1\n+x := 2", "mentions mutants.A"},
		{"a function that is gone", "mutant A: a\nin gone\n-x\n+mutants.A", "has no function or type gone"},
		{"a line that is gone", "mutant A: a\nin other\n-x := 3\n+mutants.A", "does not stand there any more"},
		{"a line that is there twice", "mutant A: a\nin other\n-x = 1\n+mutants.A", "stands there twice"},
		{"a change without a place", "mutant A: a\nin other\n+mutants.A", "no line that begins with -"},
		{"two changes of one line", "mutant A: a\nin other\n-x := 1\n+mutants.A\n-x := 1\n+mutants.A", "two mutants change line 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := parseTable(c.table)
			if err == nil {
				_, err = apply(sources, all)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
