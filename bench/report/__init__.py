"""Results for people: tables in a terminal, pictures, a page of HTML, comparisons of two runs."""
