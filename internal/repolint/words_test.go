// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// refusedWords are wrong everywhere: a private metaphor, or a form that an engineer who reads for an error has to decode. Each has what to
// write instead.
var refusedWords = []struct{ pattern, instead string }{
	{`mourn\w*`, "record a death"},
	{`bur(y|ied|ies|ial)`, "mark dead"},
	{`heirs?`, "successor, replacement"},
	{`knock\w*`, "probe"},
	{`errands?`, "call to another loop, task"},
	{`bygones?`, "released"},
	{`tidings?`, "change, notification"},
	{`lookers?`, "monitor"},
	{`nobody`, "no rank, no client, no one of them by name"},
	{`whoever`, "the rank that, the caller that"},
	{`somebody`, "a rank, a client, a goroutine"},
	{`anybody`, "any rank, another client"},
	{`is no `, `"is not a", "has no"`},
}

// refused finds them as words, and inside identifiers: mourn, theHeir, knockEvery.
var refused = compileWords()

func compileWords() *regexp.Regexp {
	var all []string
	for _, w := range refusedWords {
		all = append(all, w.pattern)
	}
	words := strings.Join(all, "|")
	title := regexp.MustCompile(`(^|\|)([a-z])`).ReplaceAllStringFunc(words, strings.ToUpper)
	return regexp.MustCompile(`\b(?i:` + words +
		`)\b|\b(?:mourn|buried|heirs?|knock|errand|bygone|tiding|looker)[A-Z_]|[a-z_](?:` + title + `)(?:[A-Z_]|\b)`)
}

// wordsAllowed are files that have to contain a refused word: this one, and those that quote PyTorch, Python or the kernel.
var wordsAllowed = map[string]string{
	"internal/repolint/words_test.go": "lists them",
}

// mostColumns is the longest line; a tab counts four.
const mostColumns = 140

// TestText: no line is longer than mostColumns, and none has a refused word.
func TestText(t *testing.T) {
	t.Parallel()
	files := 0
	for name, text := range texts(t) {
		files++
		for n, line := range problems(name, text) {
			t.Errorf("%s:%d: %s", name, n, line)
		}
	}
	if files < 1000 {
		t.Errorf("only %d files were found", files)
	}
}

// TestProblems: the rule finds what it is for, and leaves alone what it should.
func TestProblems(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 30)
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"a.go", "// a rank that has left\n", 0},
		{"a.go", "// Who" + "ever reads this\n", 1},
		{"a.go", "x := mourn" + "Dead()\n", 1},
		{"a.go", "x := await" + "Heir()\n", 1},
		{"a.go", "the rank is " + "no member\n", 1},
		{"a.go", "the rank is nonetheless a member, their own\n", 0},
		{"a.go", "// " + long + "\n", 1},
		{"a.go", "\t\t\t" + strings.Repeat("x", 130) + "\n", 1},
		{"a.go", "\t\t\t" + strings.Repeat("x", 128) + "\n", 0},
		{"a.go", "f(" + strings.Repeat("x", 120) + ") //nolint:gosec // the number is ours and small\n", 1},
		{"a.go", "//go:build " + strings.Repeat("x || ", 30) + "\n", 0},
		{"Makefile", "\t" + long + "\n", 1},
		{"a.go", "s := `\n" + long + "\n`\n", 0},
		{"a.go", "s := '`'\n// " + long + "\n", 1},
		{"a.md", long + "\n", 1},
		{"a.md", "| " + long + "|\n", 0},
		{"a.md", "```\n" + long + "\n```\n", 0},
		{"a.md", "see https://example.org/" + strings.Repeat("x", 130) + "\n", 0},
	} {
		if found := problems(c.name, c.text); len(found) != c.want {
			t.Errorf("%s %q: %d problems, want %d: %v", c.name, c.text, len(found), c.want, found)
		}
	}
}

// problems returns what is wrong with the lines of a file, by their numbers.
func problems(name, text string) map[int]string {
	found := map[int]string{}
	literal := false // in a raw string, or in a block of code in a page: the text of another program
	output := false  // in what an example prints
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if word := refusedIn(line); word != "" && wordsAllowed[name] == "" {
			found[n] = fmt.Sprintf("%q is a refused word; %s", word, insteadOf(word))
		}
		output = strings.HasPrefix(strings.TrimSpace(line), "//") && (output || strings.Contains(line, "// Output:"))
		switch {
		case output:
		case fence(name, line):
			literal = !literal
		case !literal && columns(name, line) > mostColumns:
			found[n] = fmt.Sprintf(
				"%d columns, the limit is %d: break the line (the text of another program belongs into testdata or a raw string)",
				columns(name, line), mostColumns)
		}
	}
	return found
}

// stems are in every line that refused finds: to look for them first takes a tenth of the time.
var stems = []string{
	"mourn", "bury", "buri", "heir", "knock", "errand", "bygone", "tiding", "looker", "nobody", "whoever", "somebody", "anybody", "is no ",
}

func refusedIn(line string) string {
	line = strings.ReplaceAll(line, "http.NoBody", "")
	lower := strings.ToLower(line)
	if !slices.ContainsFunc(stems, func(stem string) bool { return strings.Contains(lower, stem) }) {
		return ""
	}
	return refused.FindString(line)
}

func insteadOf(word string) string {
	for _, w := range refusedWords {
		if regexp.MustCompile(`(?i)` + w.pattern).MatchString(word) {
			return "write " + w.instead
		}
	}
	return "write what it means"
}

// fence reports whether a line begins or ends a literal that goes over several lines.
func fence(name, line string) bool {
	if strings.HasSuffix(name, ".md") {
		return strings.HasPrefix(strings.TrimSpace(line), "```")
	}
	code, _, _ := strings.Cut(line, "// ")
	code = strings.ReplaceAll(strings.ReplaceAll(code, "'`'", ""), "\"`\"", "")
	return strings.HasSuffix(name, ".go") && strings.Count(code, "`")%2 == 1
}

var (
	directive = regexp.MustCompile(`^//go:.*$`)
	address   = regexp.MustCompile(`https?://\S+`)
)

// columns is the width of a line without what cannot be broken: directives, addresses, rows of tables.
func columns(name, line string) int {
	if strings.HasSuffix(name, ".md") && strings.HasPrefix(strings.TrimSpace(line), "|") {
		return 0
	}
	line = address.ReplaceAllString(line, "")
	if strings.HasSuffix(name, ".go") {
		line = directive.ReplaceAllString(line, "")
	}
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

// texts returns the files that people write, by their names in the repository.
func texts(t *testing.T) map[string]string {
	t.Helper()
	root := filepath.Join("..", "..")
	all := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			hidden := strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci"
			if hidden || rel == "bin" || rel == "gpu-bin" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		script := rel == "Makefile" || path.Dir(rel) == "scripts" || rel == ".ci/run"
		if !script && !slices.Contains([]string{".go", ".md", ".sh", ".py", ".yml", ".yaml", ".c"}, path.Ext(rel)) {
			return nil
		}
		text, err := os.ReadFile(name)
		all[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
