"""Short, common words: most tokenizers have one token for each."""

from __future__ import annotations

_LIST = """
    about above after again air all also always am an and animal another answer any are around as
    ask at away back be because been before began below between big book both boy but by call came
    can car carry change children city close come could country cut day did different do does done
    door down each earth eat end enough even every example eye face family far father feet few find
    first follow food for form found four from garden gave get girl give go good got great grow had
    hand hard has have he head hear help her here high him his home hot house how idea if important
    in into is it just keep kind know land large last later learn leave left letter life light like
    line list little live long look made make man many may me mean men might miss more most mother
    mountain move much music must my name near need never new next night no not now number of off
    often old on once one only open or other our out over own page paper part people picture place
    plant play point press quick read real right river run said same saw say school sea second see
    seem sentence set she should show side simple small so some song soon sound spell start state
    still stop story study such sun take talk tell than that the their them then there these they
    thing think this those thought three through time to together too took tree try turn two under
    until up us use very voice walk want was watch water way we well went were what when where which
    while white who why will wind with without woman word work world would write year you young your
"""

WORDS = tuple(_LIST.split())
